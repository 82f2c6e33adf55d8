"""Writes i32 arrays to an .npz file without NumPy: write_npz.py FILE NAME:SHAPE:VALUES...

SHAPE is like 1x512, VALUES a comma-separated list that is repeated to fill it.
"""
import itertools
import math
import struct
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1], "w") as archive:
    for array in sys.argv[2:]:
        name, shape, values = array.split(":")
        shape = tuple(int(n) for n in shape.split("x"))
        count = math.prod(shape)
        values = list(itertools.islice(itertools.cycle(int(v) for v in values.split(",")), count))
        header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack(f"<{count}i", *values)
        archive.writestr(name + ".npy", data)
