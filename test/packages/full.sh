#!/usr/bin/env bash
# All tests of the packages: an installation as in .ci/run, then the programs, systems and processors that use it.
set -euo pipefail
cd "$(dirname "$0")"
INSTALL_DIR=$(mktemp -d)
export INSTALL_DIR
trap 'rm -rf "$INSTALL_DIR"' EXIT
./run.sh
node bits.cjs ../.. > "$INSTALL_DIR/bits-of-the-tree"
node bits.cjs "$INSTALL_DIR/node_modules/capstan" > "$INSTALL_DIR/bits-of-the-package"
diff "$INSTALL_DIR"/bits-of-the-*
./hosts.sh "$INSTALL_DIR"
./installations.sh
./old-debian.sh "$INSTALL_DIR"
./current-uws.sh "$INSTALL_DIR"
./arm64.sh
./macos.sh
