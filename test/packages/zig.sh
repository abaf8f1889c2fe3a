# Sourced: exports ZIG, a zig from PyPI in build/zig, unless it is set. It compiles through ccache where that is installed.
if [ -z "${ZIG:-}" ]; then
  zig=$PWD/build/zig
  [ -x "$zig/bin/python" ] || python3 -m venv "$zig"
  "$zig/bin/python" -c 'import ziglang' 2> /dev/null || "$zig/bin/pip" install --quiet --no-compile ziglang==0.17.1
  export ZIG="$zig/bin/python -m ziglang"
  if command -v ccache > /dev/null; then
    # ccache expects the compiler to be one program.
    for name in cc c++; do
      printf '#!/bin/sh\n# zig 0.17.1\nexec %s %s "$@"\n' "$ZIG" $name > "$zig/bin/zig-$name"
    done
    printf '#!/bin/sh\ncase $1 in cc | c++) program=%s-$1; shift; exec env CCACHE_COMPILERTYPE=clang CCACHE_COMPILERCHECK=string:zig-0.17.1 ccache "$program" "$@" ;; esac\nexec %s "$@"\n' \
      "$zig/bin/zig" "$ZIG" > "$zig/bin/zig"
    chmod +x "$zig/bin"/zig*
    export ZIG=$zig/bin/zig
  fi
fi
