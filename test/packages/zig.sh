# Sourced: exports ZIG, a zig from PyPI in build/zig, unless it is set. It compiles through ccache where that is installed.
if [ -z "${ZIG:-}" ]; then
  zig=$PWD/build/zig
  version=0.17.1
  [ -x "$zig/bin/python" ] || python3 -m venv "$zig"
  "$zig/bin/python" -c 'import ziglang' 2> /dev/null || "$zig/bin/pip" install --quiet --no-compile ziglang==$version
  export ZIG="$zig/bin/python -m ziglang"
  if command -v ccache > /dev/null; then
    # ccache expects the compiler to be one program.
    for name in cc c++; do printf '#!/bin/sh\nexec %s %s "$@"\n' "$ZIG" $name > "$zig/bin/zig-$name"; done
    cat > "$zig/bin/zig" << END
#!/bin/sh
export CCACHE_COMPILERTYPE=clang CCACHE_COMPILERCHECK=string:zig-$version
case \$1 in cc | c++) program=$zig/bin/zig-\$1; shift; exec ccache "\$program" "\$@" ;; esac
exec $ZIG "\$@"
END
    chmod +x "$zig/bin"/zig*
    export ZIG=$zig/bin/zig
  fi
fi
