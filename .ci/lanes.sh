# Sourced by .ci/run and .ci/full. `lane NAME COMMAND…` runs one lane. The time of every lane is printed at the end,
# also after a failure.

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

print_lanes() {
  local status=$? entry
  [ -z "${CURRENT_LANE:-}" ] || LANES+=("$((SECONDS - CURRENT_BEGIN)) $CURRENT_LANE (failed)")
  printf '\n==== seconds of each lane\n'
  for entry in "${LANES[@]}"; do printf '%6d  %s\n' "${entry%% *}" "${entry#* }"; done
  printf '%6d  total\n' "$SECONDS"
  exit $status
}
trap print_lanes EXIT
