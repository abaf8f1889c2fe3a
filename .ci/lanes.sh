# Sourced by .ci/run and .ci/full. `lane NAME COMMAND…` runs one lane. `beside NAME COMMAND…` starts one that runs beside
# others, and `await_lanes` waits for these. The time of every lane is printed at the end, also after a failure.

LANES=()

lane() {
  local name=$1 begin=$SECONDS
  shift
  printf '\n==== %s\n' "$name"
  CURRENT_LANE=$name CURRENT_BEGIN=$begin
  "$@"
  LANES+=("$((SECONDS - begin)) $name")
  CURRENT_LANE=
}

BESIDE=()

# For lanes that mostly wait for downloads or timers. `await_lanes` prints their output.
beside() {
  local name=$1 log begin=$SECONDS
  shift
  log=$(mktemp)
  # A process group for each lane, so that `print_lanes` can end all of its processes.
  set -m
  (trap 'echo $((SECONDS - begin)) > "$log.seconds"' EXIT; "$@" > "$log" 2>&1) &
  set +m
  BESIDE+=("$! $log $name")
}

await_lanes() {
  local entry pid log name suffix failed=0
  for entry in "${BESIDE[@]}"; do
    read -r pid log name <<< "$entry"
    printf '\n==== %s\n' "$name"
    suffix=
    wait "$pid" || { failed=1; suffix=' (failed)'; }
    cat "$log"
    LANES+=("$(cat "$log.seconds") $name$suffix")
    rm -f "$log" "$log.seconds"
  done
  BESIDE=()
  return $failed
}

print_lanes() {
  local status=$? entry pid log
  for entry in "${BESIDE[@]}"; do
    read -r pid log _ <<< "$entry"
    kill -- "-$pid" 2> /dev/null || true
    rm -f "$log" "$log.seconds"
  done
  [ -z "${CURRENT_LANE:-}" ] || LANES+=("$((SECONDS - CURRENT_BEGIN)) $CURRENT_LANE (failed)")
  printf '\n==== seconds of each lane\n'
  for entry in "${LANES[@]}"; do printf '%6d  %s\n' "${entry%% *}" "${entry#* }"; done
  printf '%6d  total\n' "$SECONDS"
  exit $status
}
trap print_lanes EXIT
