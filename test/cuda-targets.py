#!/usr/bin/env python3
"""Lists the contents of a library or object built by nvcc, without the CUDA tools. Exits with 1 if an expected entry is missing.

    test/cuda-targets.py FILE [TARGET…]                      lists the targets, such as sm_80 (machine code) and ptx_80
    test/cuda-targets.py --kernels NAME FILE INSTRUCTION…    checks that every sm_90 kernel with NAME in its name contains these
                                                             instructions; needs a file from nvcc --no-compress

The section .nv_fatbin consists of containers. A container is a header (magic, version, header size, bytes that follow) and
entries (kind: 1 PTX, 2 machine code; version; header size; payload size; …; the architecture's number at byte 28). Machine code
is an ELF file with a section .text.KERNEL per kernel and 16 bytes per instruction.
"""
import struct
import sys

MAGIC = struct.pack('<I', 0xBA55ED50)
KINDS = {1: 'ptx', 2: 'sm'}
# The lowest 9 bits, according to nvdisasm: warpgroup products, and box and bulk copies by the tensor memory accelerator.
INSTRUCTIONS = {'HGMMA': 0x1f0, 'UTMALDG': 0x1b4, 'UBLKCP': 0x1ba}


def entries_of(data):
    """(target, payload) pairs."""
    at = data.find(MAGIC)
    while at >= 0:
        _, header_size, size = struct.unpack_from('<HHQ', data, at + 4)
        entry, end = at + header_size, at + header_size + size
        while entry + 32 <= min(end, len(data)):
            kind, _, entry_header, payload = struct.unpack_from('<HHIQ', data, entry)
            if kind not in KINDS or entry_header < 32:
                break
            yield f'{KINDS[kind]}_{struct.unpack_from("<I", data, entry + 28)[0]}', data[entry + entry_header:entry + entry_header + payload]
            entry += entry_header + payload
        at = data.find(MAGIC, at + 4)


def kernels_of(elf):
    """(name, code) pairs."""
    table, = struct.unpack_from('<Q', elf, 40)
    count, of_names = struct.unpack_from('<HH', elf, 60)
    sections = [struct.unpack_from('<IIQQQQ', elf, table + 64 * i) for i in range(count)]
    for section, _, _, _, offset, size in sections:
        begin = sections[of_names][4] + section
        name = elf[begin:elf.index(b'\0', begin)].decode()
        if name.startswith('.text.'):
            yield name[6:], elf[offset:offset + size]


def check_targets(file, data, wanted):
    found = {target for target, _ in entries_of(data)}
    print(' '.join(sorted(found, key=lambda name: (name.split('_')[0], int(name.split('_')[1])))))
    missing = [name for name in wanted if name not in found]
    if missing:
        print(f'{file} lacks {" ".join(missing)}', file=sys.stderr)
    return 1 if missing else 0


def check_kernels(part, data, wanted):
    kernels = [kernel for target, payload in entries_of(data) if target == 'sm_90' for kernel in kernels_of(payload) if part in kernel[0]]
    print(f'{len(kernels)} kernels {part}, expected instructions: {" ".join(wanted)}')
    status = 0 if kernels else 1
    for name, code in kernels:
        found = {struct.unpack_from('<Q', code, i)[0] & 0x1ff for i in range(0, len(code), 16)}
        missing = [instruction for instruction in wanted if INSTRUCTIONS[instruction] not in found]
        if missing:
            print(f'{name} lacks {" ".join(missing)}', file=sys.stderr)
            status = 1
    return status


def main(args):
    part = args[1] if args[0] == '--kernels' else None
    file, *wanted = args[2:] if part else args
    with open(file, 'rb') as stream:
        data = stream.read()
    return check_kernels(part, data, wanted) if part else check_targets(file, data, wanted)


sys.exit(main(sys.argv[1:]))
