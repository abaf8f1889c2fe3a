#!/usr/bin/env python3
"""Keeps the results of benchmarks/gpu.sh, one JSON file per commit, and prints them as a table.

    report.py machine FILE --commit C          record the GPU of this machine
    report.py add FILE --commit C --phase P --status S --seconds N [--log FILE] [--lines FILE…]
    report.py merge FILE OTHER…                merge results of the same commit; the newest result of each phase wins
    report.py status FILE --commit C --phase P print the status of a phase, or nothing
    report.py figure FILE KEY NAME FIELD       print one measurement
    report.py table FILE                       print the table
"""
import argparse
import json
import math
import os
import re
import subprocess
import time

# The targets for the Qwen2.5-1.5B shape: shares of the hardware limit, milliseconds, and the time of PyTorch divided by the time of our kernels.
MIN_SHARES = {'decode 1x1024': 0.72, 'decode 8x1024': 0.68, 'decode 64x1024': 0.6, 'decode 256x1024': 0.55, 'decode 64x8192': 0.68, 'decode 256x8192': 0.7, 'prefill 1024': 0.45, 'prefill 8192': 0.5}
MAX_MS = {'first token 1024 cached': 5, 'first token 8192 cached': 7}
MIN_RATIOS = {'gemm': 0.75, 'attention': 0.7}
PHASES = ['build', 'primitives', 'ops', 'sanitize', 'model', 'soak', 'bench', 'serve']


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
            if line.startswith('  '):
                pending.append(line.strip())
            continue
        if match[1] == 'FAILED':
            failed[match[2]] = pending[:5]
        else:
            passed.append(match[2])
        pending = []
    return passed, failed


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


def figures(phase, key):
    return {line['name']: line for line in phase.get(key, []) if 'name' in line}


def torch_name(name):
    return re.sub('^(gemv|wgmma) ', '' if 'attention' in name else 'gemm ', name)


def shown(line, field, form):
    return format(line[field], form) if field in line else '–'


def table(results):
    machine = results.get('machine', {})
    print(f"{machine.get('name', '?')}, driver {machine.get('driver_version', '?')}, SM clock {machine.get('clocks.sm', '?')}, commit {results.get('commit', '?')[:12]}")
    phases = results.get('phases', {})
    bench = phases.get('bench', {})
    kernels, torch, steps, serve = figures(bench, 'kernels'), figures(bench, 'torch'), figures(bench, 'steps'), figures(phases.get('serve', {}), 'serve')
    gates = {}

    def gate(name, passed):
        gates[name] = passed
        return '  pass' if passed else '  FAIL'

    # Several kernels may compute the same product. Only the fastest must meet the target.
    fastest = {}
    for name, line in kernels.items():
        fastest[torch_name(name)] = min(fastest.get(torch_name(name), math.inf), line['us'])
    if kernels:
        print(f"\n{'kernel':<26}{'us':>10}{'GB/s':>8}{'TFLOP/s':>9}{'of reads':>9}{'torch us':>10}{'torch/us':>9}  gate")
    for name, line in kernels.items():
        theirs = torch.get(torch_name(name))
        beside = f"{theirs['us']:>10.1f}{theirs['us'] / line['us']:>9.2f}" if theirs else ''
        least = MIN_RATIOS.get(torch_name(name).split()[0])
        if theirs and least and line['us'] == fastest[torch_name(name)]:
            beside += gate(name, theirs['us'] / line['us'] >= least)
        print(f"{name:<26}{line['us']:>10.1f}{line['gb_per_s']:>8.0f}{line['tflop_per_s']:>9.1f}{shown(line, 'bandwidth_share', '.0%'):>9}{beside}")
    if steps:
        print(f"\n{'step':<28}{'us':>10}{'steady us':>11}{'limit us':>10}{'share':>7}{'tok/s':>10}{'transformers us':>17}{'/us':>8}  gate")
    for name, line in steps.items():
        if 'steady_us' not in line:
            continue
        theirs = torch.get(name.removeprefix('deterministic '))
        beside = f"{theirs['us']:>17.0f}{theirs['us'] / line['steady_us']:>8.2f}" if theirs else ' ' * 25
        if name in MIN_SHARES and 'steady_share' in line:
            beside += gate(name, line['steady_share'] >= MIN_SHARES[name])
        print(f"{name:<28}{line['us']:>10.0f}{line['steady_us']:>11.0f}{shown(line, 'limit_us', '.0f'):>10}{shown(line, 'steady_share', '.0%'):>7}{line['tokens_per_s']:>10.0f}{beside}")
    for name, line in torch.items():
        if name.startswith('generate'):
            print(f"{name + ' by transformers':<28}{line['us']:>10.0f}  us per token, including the prompt")
    if any('ms' in line for line in serve.values()):
        print(f"\n{'over HTTP':<26}{'ms':>10}  gate")
    for name, line in serve.items():
        if 'ms' in line:
            print(f"{name:<26}{line['ms']:>10.2f}{gate(name, line['ms'] <= MAX_MS[name]) if name in MAX_MS else ''}")
        else:
            print(f"{name}: " + ', '.join(f'{field} {value}' for field, value in line.items() if field != 'name' and not isinstance(value, dict)))
    if gates:
        failed = [name for name, passed in gates.items() if not passed]
        unmeasured = [name for name in [*MIN_SHARES, *MAX_MS] if name not in gates] + [f'{kind} against PyTorch' for kind in MIN_RATIOS if not any(torch_name(name).startswith(kind) for name in gates)]
        print(f"\n{len(gates) - len(failed)} of {len(gates)} gates passed{': not ' if failed else ''}{', '.join(failed)}; not measured: {', '.join(unmeasured) or 'none'}")

    # The summary comes last, because a remote caller may see only the end of the output.
    print()
    for name in PHASES:
        phase = results.get('phases', {}).get(name)
        if phase is None:
            print(f'{name:<9} not run')
            continue
        counts = f"{len(phase.get('passed', []))} passed, {len(phase.get('failed', {}))} failed" if phase.get('passed') or phase.get('failed') else ''
        print(f"{name:<9} {phase['status']:<8} {phase['seconds']:>7.1f} s  {counts}")
        for test, why in phase.get('failed', {}).items():
            print(f'    FAILED {test}: {why[0][:150] if why else ""}')
        if phase['status'] == 'failed' and not phase.get('failed'):
            print('    ' + ' | '.join(phase.get('log_end', '').strip().splitlines()[-2:])[:200])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('action', choices=['machine', 'add', 'merge', 'status', 'figure', 'table'])
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
    elif args.action == 'figure':
        key, name, field = args.others
        line = figures(read(args.file).get('phases', {}).get('bench', {}), key).get(name)
        print(line[field] if line else '')
    else:
        table(read(args.file))


main()
