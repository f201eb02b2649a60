"""Run as a program by creators.py: prints, as JSON, which plugin creators a library offers.

A process of its own, because loading a foreign library runs its code. Imports nothing but the standard
library, and walks the creators' vtables, so that it needs no TensorRT.
"""

import ctypes
import json
import sys

MARK = "andrea-creators:"
_MOST_CREATORS = 4096

# The slots of a creator's vtable after getAPILanguage, getInterfaceInfo and two destructors (Itanium C++
# ABI), by the kind its getInterfaceInfo names.
_SLOTS = {
    "PLUGIN CREATOR_V3ONE": {"name": 6, "version": 7, "namespace": 8},
    "PLUGIN CREATOR_V1": {"name": 4, "version": 5, "namespace": 10},
}


class _InterfaceInfo(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char_p), ("major", ctypes.c_int32), ("minor", ctypes.c_int32))


def _slot(this: int, index: int) -> int:
    vtable = ctypes.c_void_p.from_address(this).value
    assert vtable is not None
    address = ctypes.c_void_p.from_address(vtable + index * ctypes.sizeof(ctypes.c_void_p)).value
    assert address is not None
    return address


def _text(this: int, index: int) -> str:
    answer = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(_slot(this, index))(this)
    return "" if answer is None else answer.decode(errors="replace")


def probe(path: str) -> dict[str, object]:
    """What the library at `path` offers: ``creators``, or ``error`` and ``detail``."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return {"error": "load", "detail": str(error)}
    try:
        get_creators = library.getCreators
    except AttributeError:
        return {"error": "symbol", "detail": "getCreators"}
    get_creators.restype = ctypes.POINTER(ctypes.c_void_p)
    get_creators.argtypes = [ctypes.POINTER(ctypes.c_int32)]
    count = ctypes.c_int32(0)
    creators = get_creators(ctypes.byref(count))
    if not 0 <= count.value <= _MOST_CREATORS or (count.value > 0 and not creators):
        return {"error": "creators", "detail": f"getCreators counts {count.value} creators"}
    rows = []
    for index in range(count.value):
        this = creators[index]
        if not this:
            return {"error": "creators", "detail": f"creator {index} of {count.value} is null"}
        info = ctypes.CFUNCTYPE(_InterfaceInfo, ctypes.c_void_p)(_slot(this, 1))(this)
        kind = info.kind.decode(errors="replace")
        slots = _SLOTS.get(kind)
        if slots is None:
            return {"error": "creators", "detail": f"creator {index} is of the unknown kind {kind!r}"}
        rows.append({field: _text(this, slot) for field, slot in slots.items()} | {"kind": kind})
    return {"creators": rows}


if __name__ == "__main__":
    # On a line of its own, with a mark: what a foreign library prints must not be taken for the answer.
    sys.stdout.write(f"\n{MARK}{json.dumps(probe(sys.argv[1]))}\n")
    sys.stdout.flush()
