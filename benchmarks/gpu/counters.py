#!/usr/bin/env python3
"""Reads the output of `ncu --page raw --csv` and prints one JSON line per launch: the shares of DRAM and tensor cores, the largest stalls, and
bank conflicts of shared memory.

    counters.py NAME FILE

Prints the reason instead, and exits with 1, if ncu measured nothing. The names of metrics differ between versions, so they are found by pattern.
"""
import csv
import json
import re
import sys

PERCENT = {
    'dram_percent': r'^(gpu__)?dram__?throughput\.avg\.pct_of_peak_sustained_elapsed$',
    'tensor_percent': r'^sm__(inst_executed_)?pipe_tensor.*cycles_active.*pct_of_peak_sustained|^sm__inst_executed_pipe_tensor.*pct_of_peak_sustained',
    'sm_percent': r'^sm__throughput\.avg\.pct_of_peak_sustained_elapsed$',
    'warps_percent': r'^sm__warps_active\.avg\.pct_of_peak_sustained_active$',
}
STALL = r'^smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio$'
CONFLICTS = r'^l1tex__data_bank_conflicts_pipe_lsu_mem_shared(_op_(ld|st))?\.sum$'
TO_MICROSECONDS = {'ns': 1e-3, 'nsecond': 1e-3, 'us': 1, 'usecond': 1, 'ms': 1e3, 'msecond': 1e3, 's': 1e6, 'second': 1e6}


def number(text):
    try:
        return float(text.replace(',', ''))
    except ValueError:
        return None


def matching(row, pattern):
    """The numbers of the metrics whose names match."""
    return [value for name, text in row.items() if name and re.search(pattern, name) and (value := number(text or '')) is not None]


def counters_of(row, units):
    found = {}
    duration = number(row.get('gpu__time_duration.sum', ''))
    if duration is not None:
        found['us'] = round(duration * TO_MICROSECONDS.get(units.get('gpu__time_duration.sum', 'ns'), 1e-3), 3)
    for field, pattern in PERCENT.items():
        values = matching(row, pattern)
        if values:
            found[field] = round(max(values), 1)
    stalls = {}
    for name in row:
        match = re.match(STALL, name or '')
        value = number(row[name] or '') if match and match[1] != 'selected' else None
        if value is not None:
            stalls[match[1]] = value
    total = sum(stalls.values())
    if total > 0:
        found['stalls'] = ', '.join(f'{name} {value / total:.0%}' for name, value in sorted(stalls.items(), key=lambda item: -item[1])[:3])
    conflicts = matching(row, CONFLICTS)
    if conflicts:
        found['bank_conflicts'] = int(sum(conflicts))
    registers = number(row.get('launch__registers_per_thread', ''))
    if registers is not None:
        found['registers'] = int(registers)
    return found


def main():
    name, file = sys.argv[1:]
    with open(file, encoding='utf-8', errors='replace') as stream:
        lines = stream.read().splitlines()
    table = [line for line in lines if line.startswith('"')]
    rows = list(csv.DictReader(table)) if len(table) > 2 else []
    if not rows:
        # stdout is for the measurements
        reason = next((line for line in lines if re.search('ERR_|==ERROR==|Failed|not supported', line)), lines[-1] if lines else 'no output')
        print(f'ncu measured nothing of {name}: {reason.strip()[:200]}', file=sys.stderr)
        sys.exit(1)
    units = rows[0]
    for row in rows[1:]:
        print(json.dumps({'name': name, 'kernel': (row.get('Kernel Name') or '?').split('<')[0].split('(')[0], **counters_of(row, units)}))


main()
