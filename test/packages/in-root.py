"""Runs a command with another root directory, in which nothing of this machine is left but /proc, /dev and some folders.
`chroot` does not do: the kernel refuses user namespaces below it. Needs root.

    in-root.py ROOT [--bind DIR]... [--unshare-net] -- COMMAND...

DIR keeps its path. The environment passes only variables whose names begin with CAPSTAN_, HOME=/root and TMPDIR.
"""
import argparse
import ctypes
import os

MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4096, 16384, 1 << 18, 2
CLONE_NEWNS = 0x20000
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--bind", action="append", default=[])
parser.add_argument("command", nargs="+")
args = parser.parse_args()
libc = ctypes.CDLL(None, use_errno=True)


def call(function, *values):
    values = [value.encode() if isinstance(value, str) else value for value in values]
    if function(*values) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(values))


def mount(source, target, kind, flags):
    os.makedirs(target, exist_ok=True)
    call(libc.mount, source, target, kind, ctypes.c_ulong(flags), None)


root = os.path.realpath(args.root)
call(libc.unshare, CLONE_NEWNS)
call(libc.mount, None, "/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
mount(root, root, None, MS_BIND)
mount("proc", root + "/proc", "proc", 0)
for folder in ["/dev", "/sys", *args.bind]:
    mount(folder, root + folder, None, MS_BIND | MS_REC)
os.makedirs(root + "/.old", exist_ok=True)
call(libc.syscall, PIVOT_ROOT, root, root + "/.old")
os.chdir("/")
call(libc.umount2, "/.old", MNT_DETACH)
os.rmdir("/.old")
env = {name: value for name, value in os.environ.items() if name.startswith("CAPSTAN_") or name == "TMPDIR"}
os.execve(args.command[0], args.command, {"HOME": "/root", **env})
