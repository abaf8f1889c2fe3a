# Sourced: exports RELEASED_NODE, a Node.js of nodejs.org from npm, in build/node, unless it is set. That of Debian needs
# shared libraries.
if [ -z "${RELEASED_NODE:-}" ]; then
  version=24.21.0 cpu=$(node -p process.arch)
  RELEASED_NODE=$PWD/build/node/node_modules/node-linux-$cpu/bin/node
  [ "$("$RELEASED_NODE" -v 2> /dev/null)" = "v$version" ] ||
    npm install --prefix build/node --no-audit --no-fund --ignore-scripts --loglevel error "node-linux-$cpu@$version"
  export RELEASED_NODE
fi
