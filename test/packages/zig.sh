# Sourced: exports ZIG, a zig from PyPI in build/zig, unless it is set.
if [ -z "${ZIG:-}" ]; then
  zig=$PWD/build/zig
  [ -x "$zig/bin/python" ] || python3 -m venv "$zig"
  "$zig/bin/python" -c 'import ziglang' 2> /dev/null || "$zig/bin/pip" install --quiet --no-compile ziglang==0.17.1
  export ZIG="$zig/bin/python -m ziglang"
fi
