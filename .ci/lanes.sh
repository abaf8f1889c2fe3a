# Sourced by .ci/run and .ci/full. `lane NAME COMMAND…` runs one lane. `beside NAME COMMAND…` starts one that runs beside
# others, and `await_lanes` waits for these. At the end, also after a failure, the seconds of every lane are printed, and
# those of processor time.

LANES=()

# Sets USED to the processor time of all processes that have ended, in seconds. A subshell would have its own.
measure() {
  local file
  file=$(mktemp)
  times > "$file"
  USED=$(awk 'NR == 2 { split($1 "m" $2, part, /[ms]+/); print int(60 * (part[1] + part[3]) + part[2] + part[4]) }' "$file")
  rm "$file"
}

lane() {
  local name=$1 begin=$SECONDS before
  shift
  printf '\n==== %s\n' "$name"
  measure
  before=$USED
  CURRENT_LANE=$name CURRENT_BEGIN=$begin
  "$@"
  measure
  LANES+=("$((SECONDS - begin)) $name (processor time $((USED - before)))")
  CURRENT_LANE=
}

# `lane_before MINUTES NAME COMMAND…` leaves out the lane when the run has taken longer, and says so in the table. For the
# last lanes, on machines that would not end them within the 90 minutes that a run may take.
lane_before() {
  local minutes=$1
  shift
  if [ "$SECONDS" -le $((minutes * 60)) ]; then lane "$@"; return; fi
  printf '\n==== %s: left out after %d minutes. Run .ci/full.\n' "$1" $((SECONDS / 60))
  LANES+=("0 $1 (left out: the run had taken more than $minutes minutes)")
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
