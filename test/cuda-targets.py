#!/usr/bin/env python3
"""The fat binary's list: which targets a library or object made by nvcc holds, without CUDA's tools.

    test/cuda-targets.py FILE [WANTED…]      prints targets as sm_80 (machine code) and ptx_80; exit status 1 where one that is wanted is not there

In the section .nv_fatbin lie containers, each a header (magic, version, its own size, bytes that follow) and entries (kind: 1 PTX, 2 machine code; version; header size;
payload size; …; at byte 28 the architecture's number).
"""
import struct
import sys

MAGIC = struct.pack('<I', 0xBA55ED50)
KINDS = {1: 'ptx', 2: 'sm'}


def targets_of(data):
    found = set()
    at = data.find(MAGIC)
    while at >= 0:
        _, header_size, size = struct.unpack_from('<HHQ', data, at + 4)
        entry, end = at + header_size, at + header_size + size
        while entry + 32 <= min(end, len(data)):
            kind, _, entry_header, payload = struct.unpack_from('<HHIQ', data, entry)
            if kind not in KINDS or entry_header < 32:
                break
            found.add(f'{KINDS[kind]}_{struct.unpack_from("<I", data, entry + 28)[0]}')
            entry += entry_header + payload
        at = data.find(MAGIC, at + 4)
    return found


def main(file, wanted):
    with open(file, 'rb') as stream:
        found = targets_of(stream.read())
    print(' '.join(sorted(found, key=lambda name: (name.split('_')[0], int(name.split('_')[1])))))
    missing = [name for name in wanted if name not in found]
    if missing:
        print(f'{file} lacks {" ".join(missing)}', file=sys.stderr)
    return 1 if missing else 0


sys.exit(main(sys.argv[1], sys.argv[2:]))
