# Sourced by benchmarks/gpu.sh: what is sent to a machine that starts empty.
# Everything is in megabytes of 1,000,000 bytes.

# Most that may be sent: the files that git tracks or does not ignore, without ASIDE, and the packs. A lent machine takes 64 MiB.
MOST_MB=56
# The share of the packs.
MOST_PACKS_MB=36
# Folders that a GPU machine does not need. `aside` moves them out of the working tree, `restore` moves them back.
ASIDE=(docs server ts examples packaging test/clients test/fakes test/fuzz test/image test/models test/oracle test/packages test/proxies test/server test/ts)
PUT_ASIDE=build/gpu/aside

phase_records() {
  tree_key > "$RECORDS/commit"
  node -r ./test/oracle/register-ts.cjs test/oracle/records.ts "$RECORDS/golden.txt"
}

# Installs the product in folder $1 as npm would, with Node and without files for other platforms.
pack_product() {
  npm ci --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error --prefix "$1" > /dev/null || return 1
  find "$1/node_modules" \( -name '*.node' \( -path '*darwin*' -o -path '*win32*' -o -path '*android*' -o -path '*arm*' -o -path '*musl*' \) -o -name 'uws_*.node' ! -name "uws_linux_x64_$(node -p process.versions.modules).node" \
    -o -name '*.map' -o -name '*.d.ts' -o -name '*.pdf' -o -path '*/bintrees/test/*' \) -type f -delete
  cp -r dist "$1/"
  mkdir -p "$1/build/Release"
  cp build/Release/capstan.node "$1/build/Release/"
  cp "$(command -v node)" "$1/node"
  strip "$1/node" "$1/build/Release/capstan.node"
}

# The programs for compute capability 9.0, and for a search of hangs once more with limited waits.
phase_pack() {
  local folder=$BUILD/pack
  phase_records || return 1
  rm -rf "$RECORDS"/packed* "$folder/bin"
  mkdir -p "$folder/bin"
  build_cuda "$folder/cmake" 90a || return 1
  build_cuda "$folder/limited" 90a -DCAPSTAN_LIMITED_SPINS=ON -- --target gpu_ops gpu_kernels || return 1
  make -C test/native -j"$(jobs)" -s gpu || return 1
  local program
  for program in gpu_ops gpu_kernels; do cp "$folder/limited/$program" "$folder/bin/${program}_limited"; done
  cp "$folder"/cmake/{gpu_ops,gpu_kernels,gpu_faults.so} "$folder/cmake/cuda/capstan_cuda.so" build/test-native/release/{gpu_tests,gpu_steps} "$folder/bin/"
  strip --strip-unneeded "$folder"/bin/*
  tar -C "$folder" -c bin | xz -T0 -9e > "$RECORDS/pack.tar.xz" || return 1
  cp "$RECORDS/commit" "$RECORDS/packed"
  phase_size
}

# For the second call: the product with Node, and the golden models that CUDA runs.
phase_pack_product() {
  local folder=$BUILD/pack/product
  rm -rf "$RECORDS/packed-product" "$folder"
  mkdir -p "$folder"
  cp package.json package-lock.json "$folder/"
  npm run --silent build && pack_product "$folder" || return 1
  tar -C "$BUILD/pack" -c product | xz -T0 -9e > "$RECORDS/product.tar.xz" || return 1
  awk '$1 == "files" { left = $2; next } left > 0 { print; left-- }' "$RECORDS/golden.txt" | sort -u | tar -c -T - | xz -T0 -9e > "$RECORDS/golden.tar.xz" || return 1
  tree_key > "$RECORDS/packed-product"
  phase_size
}

# Unpacks the archives of this tree, once each.
unpack() {
  local name
  for name in pack product golden; do
    if [ -s "$RECORDS/$name.tar.xz" ] && [ "$(cat "$PACKED/$name" 2>/dev/null)" != "$COMMIT" ]; then
      local to=$PACKED
      [ $name = golden ] && to=.
      mkdir -p "$PACKED"
      { tar -xJf "$RECORDS/$name.tar.xz" -C "$to" || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$RECORDS/$name.tar.xz" "$to"; } && echo "$COMMIT" > "$PACKED/$name"
    fi
  done
}

phase_aside() {
  local folder
  [ ! -e "$PUT_ASIDE" ] || { echo "expected no folder $PUT_ASIDE; run benchmarks/gpu.sh restore"; return 1; }
  for folder in "${ASIDE[@]}"; do
    [ -e "$folder" ] || continue
    mkdir -p "$PUT_ASIDE/$(dirname "$folder")"
    mv "$folder" "$PUT_ASIDE/$folder" || return 1
  done
  phase_size
}

phase_restore() {
  local folder
  [ -e "$PUT_ASIDE" ] || { echo 'nothing is aside'; return 0; }
  for folder in "${ASIDE[@]}"; do
    if [ -e "$PUT_ASIDE/$folder" ]; then mv -n "$PUT_ASIDE/$folder" "$folder" || return 1; fi
  done
  find "$PUT_ASIDE" -type d -empty -delete
  [ ! -e "$PUT_ASIDE" ] || { echo "not moved, because the folders exist: $(ls "$PUT_ASIDE")"; return 1; }
}

# Bytes of the files named on standard input, ended by zeros, that exist.
bytes_of() { xargs -0 stat -c %s 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }'; }

# Fails if the tree and the packs exceed what may be sent. Before `pack` it assumes packs of their largest size.
phase_size() {
  local excluded=() folder tree packs=0 most
  for folder in "${ASIDE[@]}"; do excluded+=(":!$folder"); done
  tree=$(git ls-files -z --cached --others --exclude-standard -- . "${excluded[@]}" | bytes_of)
  packs=$(find "$RECORDS" -type f -print0 | bytes_of)
  most=$packs
  if [ ! -e "$RECORDS/packed-product" ]; then most=$((MOST_PACKS_MB * 1000000)); fi
  printf 'to send: tree %d kB, packs %d kB, most %d kB\n' $((tree / 1000)) $((packs / 1000)) $((MOST_MB * 1000))
  if [ "$packs" -gt $((MOST_PACKS_MB * 1000000)) ]; then echo "the packs exceed $MOST_PACKS_MB MB (benchmarks/gpu/pack.sh)"; return 1; fi
  if [ $((tree + most)) -gt $((MOST_MB * 1000000)) ]; then
    echo "tree and packs exceed $MOST_MB MB: move files to a folder that a GPU machine does not need, and name it in ASIDE (benchmarks/gpu/pack.sh)"
    return 1
  fi
}
