"""What a wheel of acker has to be: its size, what is in it, what it links against. scripts/wheel.py asks.

Each check takes plain values and yields one sentence for everything that is wrong.
"""

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

# Twice what a wheel took when this was written (0.9 MB). Debug information, sources or a second copy of a module, which
# are what makes a wheel grow by accident, take more than that.
SIZE_BYTES_MAX = 1_800_000

MODULES = ("_core", "_flow", "_handles")
# A function that modules have which were built with ACKER_TESTING=1.
_OF_TESTS = b"fail_allocations_after"
TYPES = ("acker/py.typed", *(f"acker/{module}.pyi" for module in MODULES))
# What the platform gives: the C library (of glibc or musl, with its loader and its older parts) and GCC's own.
LIBRARIES = re.compile(r"(libc|libm|libpthread|ld-linux-[\w-]+|libc\.musl-\w+|libstdc\+\+|libgcc_s)\.so(\.\d+)?")
_DATA = {".html", ".css", ".js", ".svg"}
_LICENCE = "acker/ui/static/vendor/LICENCE.txt"
_EXTENSION = re.compile(r"\.(?:cpython-(?P<version>\d+t?)-[\w-]+|cp(?P<windows>\d+t?)-\w+)\.(?:so|pyd)$")


def tag_of(wheel: Path) -> str:
    """Return the interpreter that a wheel is for, such as cp313."""
    return wheel.stem.split("-")[2]


def platform_of(wheel: Path) -> str:
    """Return the platform tag of a wheel, such as manylinux_2_35_x86_64."""
    return wheel.stem.split("-")[4]


def names_in(wheel: Path) -> list[str]:
    """Return the files in a wheel; what auditwheel packs has entries for folders, too."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if not name.endswith("/"))


def oversize(size_bytes: int) -> Iterator[str]:
    """Complain about a wheel that is too large."""
    if size_bytes > SIZE_BYTES_MAX:
        yield f"{size_bytes:,} bytes are more than {SIZE_BYTES_MAX:,}"


def find_misplaced(names: Iterable[str]) -> Iterator[str]:
    """Complain about files that are missing, and about files that have no business in a wheel."""
    present = set(names)
    if not present:
        yield "there is nothing in it"
    for wanted in TYPES:
        if wanted not in present:
            yield f"{wanted} is missing"
    for module in MODULES:
        compiled = [name for name in present if _EXTENSION.sub("", name) == f"acker/{module}" != name]
        if len(compiled) != 1:
            yield f"acker/{module} is there {len(compiled)} times"
    for name in sorted(present):
        path = PurePosixPath(name)
        if path.parts[0].endswith(".dist-info"):
            continue
        fine = path.parts[0] == "acker" and (
            path.suffix in {".py", *_DATA} or name in {*TYPES, _LICENCE} or _EXTENSION.search(name) is not None
        )
        if not fine:
            yield f"{name} does not belong in it"


def unlike(contents: dict[str, list[str]]) -> Iterator[str]:
    """Complain about wheels that hold different files; {wheel: names}. What tells the interpreter is left out."""

    def common(names: Iterable[str]) -> set[str]:
        return {_EXTENSION.sub(".compiled", name) for name in names}

    first, *others = contents
    for other in others:
        for name in sorted(common(contents[first]) ^ common(contents[other])):
            yield f"{name} is in one of {first} and {other} only"


def strange_libraries(libraries: dict[str, list[str]]) -> Iterator[str]:
    """Complain about libraries that are not the platform's own; {module: what it links against}."""
    if not libraries:
        yield "no compiled module was looked at"
    for module, needed in libraries.items():
        for library in needed:
            if not LIBRARIES.fullmatch(library):
                yield f"{module} links against {library}"


def built_for_tests(wheel: Path) -> Iterator[str]:
    """Complain about compiled modules that have what only tests need."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if _EXTENSION.search(name) and _OF_TESTS in archive.read(name):
                yield f"{name} was built with ACKER_TESTING=1"


def libraries_of(wheel: Path) -> dict[str, list[str]]:
    """Return what each compiled module of a Linux wheel links against, as its ELF header says."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                section = ELFFile(io.BytesIO(archive.read(name))).get_section_by_name(".dynamic")
                assert isinstance(section, DynamicSection), name
                tags = section.iter_tags("DT_NEEDED")
                found[PurePosixPath(name).name] = sorted(str(tag.needed) for tag in tags)
    return found
