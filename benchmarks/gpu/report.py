#!/usr/bin/env python3
"""Keeps the results of benchmarks/gpu.sh, one JSON file per commit, and prints them as a table.

    report.py machine FILE --commit C          record the GPU of this machine
    report.py add FILE --commit C --phase P --status S --seconds N [--log FILE] [--lines FILE…]
    report.py merge FILE OTHER…                merge results of the same commit; the newest result of each phase wins
    report.py status FILE --commit C --phase P print the status of a phase, or nothing
    report.py table FILE                       print the table
"""
import argparse
import json
import os
import re
import subprocess
import time

from tables import print_tables


def read(file):
    try:
        with open(file, encoding='utf-8') as stream:
            return json.load(stream)
    except FileNotFoundError:
        return {}


def write(file, results):
    os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
    with open(file + '.part', 'w', encoding='utf-8') as stream:
        json.dump(results, stream, indent=1)
        stream.write('\n')
    os.replace(file + '.part', file)


def for_commit(results, commit):
    """Returns the results if they are for this commit, otherwise empty results."""
    return results if results.get('commit') == commit else {'commit': commit, 'machine': {}, 'phases': {}}


def query_gpu():
    fields = ['name', 'driver_version', 'compute_cap', 'clocks.sm', 'clocks.mem', 'clocks.max.sm', 'power.draw', 'power.limit', 'temperature.gpu', 'memory.total']
    try:
        answer = subprocess.run(['nvidia-smi', '--query-gpu=' + ','.join(fields), '--format=csv,noheader'], capture_output=True, text=True, timeout=60, check=True).stdout
        return dict(zip(fields, [value.strip() for value in answer.splitlines()[0].split(',')]))
    except (OSError, subprocess.SubprocessError, IndexError):
        return {'name': 'none (kernels run on the CPU)'}


def tests_of(log):
    """Parses the output of the test programs: 'ok     name' or 'FAILED name', preceded by indented messages."""
    passed, failed, pending = [], {}, []
    for line in log.splitlines():
        match = re.match(r'(ok    |FAILED) (\w+)$', line)
        if match is None:
            if line in ('failed tests:', 'slowest tests:'):
                pending = []
            elif line.startswith('  '):
                pending.append(line.strip())
            continue
        if match[1] == 'FAILED':
            failed[match[2]] = pending[:5]
        else:
            passed.append(match[2])
        pending = []
    return passed, failed


def waits_of(log):
    """The first message of each test that ran again with limited waits, which names the wait that did not end."""
    waits, name = {}, None
    for line in log.splitlines():
        match = re.match(r'  (\S.*) with limited waits:$', line)
        if match:
            name = match[1]
        elif name and line.startswith('  '):
            waits.setdefault(name, line.strip())
        else:
            name = None
    return waits


def parse(line):
    """Returns a measurement, or None for an incomplete or invalid line."""
    try:
        return json.loads(line) if line.startswith('{') else None
    except ValueError:
        return None


def add(args):
    results = for_commit(read(args.file), args.commit)
    phase = {'status': args.status, 'seconds': round(args.seconds, 1), 'finished': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}
    if args.log and os.path.exists(args.log):
        with open(args.log, encoding='utf-8', errors='replace') as stream:
            log = stream.read()
        phase['passed'], phase['failed'] = tests_of(log)
        phase['waits'] = waits_of(log)
        if args.status != 'passed':
            phase['log_end'] = log[-2000:]
        phase['notes'] = [line.strip() for line in log.splitlines() if line.startswith('  ') and re.search(r'worst|requests,', line)][:60]
    for file in args.lines:
        if not os.path.exists(file):
            continue
        key = os.path.splitext(os.path.basename(file))[0]
        with open(file, encoding='utf-8') as stream:
            phase[key] = [parsed for parsed in map(parse, stream) if parsed is not None]
    results['phases'][args.phase] = phase
    write(args.file, results)


def merge(file, others):
    results = read(file)
    for other in others:
        theirs = read(other)
        if not theirs or (results and theirs.get('commit') != results.get('commit')):
            continue
        results = results or {'commit': theirs['commit'], 'machine': {}, 'phases': {}}
        results['machine'] = results['machine'] or theirs.get('machine', {})
        for name, phase in theirs.get('phases', {}).items():
            mine = results['phases'].get(name)
            if mine is None or mine['finished'] < phase['finished']:
                results['phases'][name] = phase
    if results:
        write(file, results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('action', choices=['machine', 'add', 'merge', 'status', 'table'])
    parser.add_argument('file')
    parser.add_argument('others', nargs='*')
    parser.add_argument('--commit', default='unknown')
    parser.add_argument('--phase')
    parser.add_argument('--status')
    parser.add_argument('--seconds', type=float, default=0)
    parser.add_argument('--log')
    parser.add_argument('--lines', nargs='*', default=[])
    args = parser.parse_args()
    if args.action == 'machine':
        results = for_commit(read(args.file), args.commit)
        results['machine'] = query_gpu()
        write(args.file, results)
    elif args.action == 'add':
        add(args)
    elif args.action == 'merge':
        merge(args.file, args.others)
    elif args.action == 'status':
        print(for_commit(read(args.file), args.commit)['phases'].get(args.phase, {}).get('status', ''))
    else:
        print_tables(read(args.file))


main()
