"""Makes and compares the NumPy files of the demo with Python's standard library alone: the machine may have no NumPy.

    npz.py tokens FILE ID...     FILE gets `tokens`, an int32 array of shape [1, number of IDs]
    npz.py compare A B NAME      compares the float32 array NAME [..., width] of two files and prints a JSON object:
                                 positions (rows), max_abs_diff (null when some value is not finite), same_argmax
                                 (of every row); exits 1 when the shapes differ
"""

import array
import ast
import json
import math
import operator
import struct
import sys
import zipfile


def write_tokens(path, ids):
    header = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, %d), }" % len(ids)
    # Magic, version, header length: the data then starts at a multiple of 64 bytes.
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tokens.npy", data + struct.pack("<%di" % len(ids), *ids))


def read_f32(path, name):
    with zipfile.ZipFile(path) as archive:
        data = archive.read(name + ".npy")
    if data[:6] != b"\x93NUMPY":
        sys.exit("%s: %s is no NumPy array" % (path, name))
    size = 2 if data[6] == 1 else 4
    start = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    header = ast.literal_eval(data[8 + size : start].decode())
    if header["descr"] != "<f4" or header["fortran_order"]:
        sys.exit("%s: %s is not a float32 array in C order" % (path, name))
    values = array.array("f")
    values.frombytes(data[start:])
    return header["shape"], values


def compare(left, right, name):
    (shape, a), (other, b) = read_f32(left, name), read_f32(right, name)
    if shape != other:
        sys.exit("%s has shape %s in %s and %s in %s" % (name, shape, left, other, right))
    width = shape[-1]
    finite = all(map(math.isfinite, a)) and all(map(math.isfinite, b))
    same = finite
    for row in range(0, len(a), width) if finite else ():
        x, y = a[row : row + width], b[row : row + width]
        same = same and x.index(max(x)) == y.index(max(y))
    print(json.dumps({
        "positions": len(a) // width,
        "max_abs_diff": max(map(abs, map(operator.sub, a, b)), default=0.0) if finite else None,
        "same_argmax": same,
    }))


if sys.argv[1] == "tokens":
    write_tokens(sys.argv[2], [int(word) for word in sys.argv[3:]])
else:
    compare(*sys.argv[2:5])
