"""Would a good hash map do? Native ingest against an acker over unordered_dense and maps of Rust, Boost and C++.

Each rival has one map for all buckets and the libraries' own hashing, and answers an easier question than the acker's:
it checks nothing, knows no FAIL, RESET_TIMEOUT or limits, and counts nothing.
"""

import shutil
import subprocess
from functools import cache, partial

from native_rival import against, compiler, cpp_library, rust_library

from benchmarks.suite.measure import Case


@cache
def why_no_boost():
    """Return why Boost's flat map cannot be compiled here; None if it can."""
    include = "#include <boost/unordered/unordered_flat_map.hpp>\n"
    command = [*compiler(), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=include, text=True, capture_output=True, check=False)
    return None if done.returncode == 0 else "there is no Boost 1.81 or newer (in Debian libboost1.81-dev)"


def why_no_rust():
    """Return why a crate cannot be compiled here; None if it can."""
    return None if shutil.which("cargo") else "there is no cargo, which compiles the rival in Rust"


RIVALS = {
    "hashbrown": (partial(rust_library, "hashbrown_acker"), why_no_rust),
    "boost": (partial(cpp_library, "hash_maps.cpp", "BOOST_FLAT_MAP"), why_no_boost),
    "dense": (partial(cpp_library, "hash_maps.cpp", "UNORDERED_DENSE"), None),
    "std": (partial(cpp_library, "hash_maps.cpp"), None),
}
QUESTION = "Would a hash map of a library do?"
CASES = [
    Case(f"{name}/{workload}", QUESTION, partial(against, name, library, workload), obstacle=obstacle)
    for name, (library, obstacle) in RIVALS.items()
    for workload in ("m1", "k20", "s20k")
]
