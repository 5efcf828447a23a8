"""The memory of tuples that are gone, kept for the next ones: a topology makes and drops one for each emission."""

cdef extern from * namespace "acker":
    """
#include <cstddef>
#include <cstring>

namespace acker {

// No memory is kept where threads free tuples at once, or where a tool looks for memory that is used after its end.
#if !defined(Py_GIL_DISABLED) && !defined(__SANITIZE_ADDRESS__)

// Tuples of up to this many words have memory kept for them, so many of one size at most.
constexpr size_t KEPT_WORDS = 32;
constexpr size_t KEPT_TUPLES = 4096;

struct KeptMemory {
    void* first = nullptr;  // each piece begins with the address of the next one
    size_t count = 0;
};

// By size in words. The GIL protects it.
inline KeptMemory kept_memory[KEPT_WORDS + 1];

inline KeptMemory* kept_for(const PyTypeObject* type) noexcept {
    const size_t words = static_cast<size_t>(type->tp_basicsize) / sizeof(void*);
    return words <= KEPT_WORDS ? &kept_memory[words] : nullptr;
}

inline PyObject* take_kept(PyTypeObject* type) noexcept {
    KeptMemory* kept = kept_for(type);
    if (kept == nullptr || kept->first == nullptr) return nullptr;
    void* piece = kept->first;
    kept->first = *static_cast<void**>(piece);
    --kept->count;
    std::memset(piece, 0, static_cast<size_t>(type->tp_basicsize));
    return PyObject_Init(static_cast<PyObject*>(piece), type);
}

inline bool keep(PyObject* instance) noexcept {
    KeptMemory* kept = kept_for(Py_TYPE(instance));
    if (kept == nullptr || kept->count == KEPT_TUPLES) return false;
    void* piece = instance;
    *static_cast<void**>(piece) = kept->first;
    kept->first = piece;
    ++kept->count;
    return true;
}

#else

inline PyObject* take_kept(PyTypeObject*) noexcept { return nullptr; }
inline bool keep(PyObject*) noexcept { return false; }

#endif

// A type's tp_alloc. Python's cyclic collector does not track the new instance yet.
inline PyObject* allocate_tuple(PyTypeObject* type, Py_ssize_t items) noexcept {
    PyObject* instance = take_kept(type);
    if (instance != nullptr) return instance;
    instance = PyType_GenericAlloc(type, items);
    if (instance != nullptr) PyObject_GC_UnTrack(instance);
    return instance;
}

// A type's tp_free, for an instance that the collector no longer tracks.
inline void free_tuple(void* instance) noexcept {
    if (!keep(static_cast<PyObject*>(instance))) PyObject_GC_Del(instance);
}

// The native class that all classes of tuples inherit from.
inline PyTypeObject* base_of_tuples = nullptr;

// Drops the values, which stand behind the fields of the native class, and then what that class holds.
inline void drop_parts(PyObject* instance, const PyTypeObject* tuple_type) noexcept {
    auto** value = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(instance) + base_of_tuples->tp_basicsize);
    auto** end = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(instance) + tuple_type->tp_basicsize);
    for (; value != end; ++value) Py_CLEAR(*value);
    base_of_tuples->tp_dealloc(instance);
}

// A type's tp_dealloc: what Python does for any class, without what a class of tuples does not have. It also runs as a
// part of what Python does for a class that inherits from one of tuples.
inline void drop_tuple(PyObject* instance) noexcept {
    PyTypeObject* type = Py_TYPE(instance);
    const PyTypeObject* tuple_type = type;
    while (tuple_type->tp_dealloc != drop_tuple) tuple_type = tuple_type->tp_base;
    if (type != tuple_type || !PyObject_GC_IsTracked(instance)) {
        drop_parts(instance, tuple_type);
        Py_DECREF(type);
        return;
    }
    // A value may be a tuple that holds a tuple, and so on, deeper than the stack.
    PyObject_GC_UnTrack(instance);
    Py_TRASHCAN_BEGIN(instance, drop_tuple) drop_parts(instance, tuple_type);
    Py_DECREF(type);
    Py_TRASHCAN_END
}

// Lets a class that was made in Python, with slots for values and nothing else, make and drop its instances like this.
// The class must not have instances yet.
inline void make_memory_faster(PyObject* tuple_type, PyObject* native_class) noexcept {
    auto* type = reinterpret_cast<PyTypeObject*>(tuple_type);
    auto* base = reinterpret_cast<PyTypeObject*>(native_class);
    const bool is_usual = type->tp_alloc == PyType_GenericAlloc && type->tp_free == PyObject_GC_Del &&
                          type->tp_finalize == nullptr && type->tp_del == nullptr && type->tp_itemsize == 0 &&
                          type->tp_dictoffset == 0 && type->tp_weaklistoffset == 0;
    const bool has_only_its_slots = type->tp_base != nullptr && type->tp_base->tp_basicsize == base->tp_basicsize;
    if (!is_usual || !has_only_its_slots || (base->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) return;
    base_of_tuples = base;
    type->tp_alloc = allocate_tuple;
    type->tp_free = free_tuple;
    type->tp_dealloc = drop_tuple;
}

}  // namespace acker
    """
    void make_memory_faster(object tuple_type, object native_class)
