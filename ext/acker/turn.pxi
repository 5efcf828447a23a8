"""The component that a thread runs at the moment, so that its `emit` finds the native emitter without an attribute."""

cdef extern from * namespace "acker":
    """
namespace acker {

// It owns both references. Without a turn both are null.
struct Turn {
    PyObject* component = nullptr;
    PyObject* emitter = nullptr;
    bool is_spout = false;
};

inline thread_local Turn turn;

// Returns the turn before, for `end_turn`.
inline Turn begin_turn(PyObject* component, PyObject* emitter, bool is_spout) noexcept {
    const Turn before = turn;
    turn = Turn{Py_NewRef(component), Py_NewRef(emitter), is_spout};
    return before;
}

inline void end_turn(const Turn& before) noexcept {
    const Turn ended = turn;
    turn = before;
    Py_XDECREF(ended.component);
    Py_XDECREF(ended.emitter);
}

// The emitter of a component if it is this thread's turn, as a borrowed reference; else null.
inline PyObject* emitter_in_turn(PyObject* component, bool is_spout) noexcept {
    const Turn& now = turn;
    return now.component == component && now.is_spout == is_spout ? now.emitter : nullptr;
}

}  // namespace acker
    """
    struct Turn:
        pass
    Turn begin_turn(object component, object emitter, bint is_spout)
    void end_turn(Turn before)
    PyObject* emitter_in_turn(object component, bint is_spout)
