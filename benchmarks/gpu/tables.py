"""The tables of benchmarks/gpu.sh. They are short, because a remote caller may see only the last 12,000 characters."""
import glob
import math
import re

# The targets for the Qwen2.5-1.5B shape: shares of the hardware limit, milliseconds, and the time of PyTorch divided by the time of our kernels.
MIN_SHARES = {'decode 1x1024': 0.72, 'decode 8x1024': 0.68, 'decode 64x1024': 0.6, 'decode 256x1024': 0.55, 'decode 64x8192': 0.68, 'decode 256x8192': 0.7, 'prefill 1024': 0.45, 'prefill 8192': 0.5}
MAX_MS = {'first token 1024 cached': 5, 'first token 8192 cached': 7}
MIN_RATIOS = {'gemm': 0.75, 'attention': 0.7}
PHASES = ['build', 'limits', 'primitives', 'repeats', 'steps', 'ablations', 'timeline', 'counters', 'kernels', 'ops', 'model', 'serve', 'bench', 'sanitize', 'soak']
SHOWN_TOKENS = [1, 4, 8, 64, 128, 256, 1024, 8192]


def figures(results, key, *phases):
    """The measurements of some phases (default: all) by name, from their file of this name."""
    return {line['name']: line for name, phase in results.get('phases', {}).items() if not phases or name in phases for line in phase.get(key, []) if 'name' in line}


def torch_name(name):
    return re.sub('^(gemv|wgmma) ', '' if 'attention' in name else 'gemm ', name)


def shown(line, field, form):
    return format(line[field], form) if field in line else '–'


def line_of(kernel):
    """The kernel with the place of its definition."""
    for file in sorted(glob.glob('cuda/kernels/*')):
        with open(file, encoding='utf-8') as stream:
            for number, text in enumerate(stream, 1):
                if re.search(rf'\b{kernel}\(', text) and not text.lstrip().startswith(('//', 'launch')):
                    return f'{kernel} ({file}:{number})'
    return kernel


class Gates:
    def __init__(self):
        self.passed = {}

    def check(self, name, passed):
        self.passed[name] = passed
        return '  pass' if passed else '  FAIL'

    def summary(self):
        failed = [name for name, passed in self.passed.items() if not passed]
        unmeasured = [name for name in [*MIN_SHARES, *MAX_MS] if name not in self.passed]
        return f"{len(self.passed) - len(failed)} of {len(self.passed)} gates passed{': not ' if failed else ''}{', '.join(failed)}; not measured: {', '.join(unmeasured) or 'none'}"


def print_kernels(results, gates):
    """One line per layer: our time in microseconds, and PyTorch's time divided by it. Several of our kernels may compute the same product. The
    fastest counts."""
    torch, rows, others = figures(results, 'torch'), {}, []
    fastest = {}
    for name, line in figures(results, 'kernels', 'kernels').items():
        common = torch_name(name)
        if line['us'] < fastest.get(common, {'us': math.inf})['us']:
            fastest[common] = {**line, 'ours': name.split()[0]}
    for name, line in fastest.items():
        theirs = torch.get(name)
        ratio = theirs['us'] / line['us'] if theirs else None
        least = MIN_RATIOS.get(name.split()[0])
        verdict = gates.check(name, ratio >= least) if ratio and least else ''
        text = f"{line['us']:.1f}" + (f" {ratio:.2f}×{'!' if 'FAIL' in verdict else ''}" if ratio else '')
        match = re.match(r'gemm (\w+) x(\d+)$', name)
        if match:
            rows.setdefault(match[1], {})[int(match[2])] = text
        else:
            others.append(f'{name} {text}')
    if rows:
        columns = sorted({tokens for row in rows.values() for tokens in row if tokens in SHOWN_TOKENS or tokens == 9})
        print('\nproducts: µs and PyTorch / ours, by tokens; ! is below the gate')
        print(f"{'':<9}" + ''.join(f'{tokens:>14}' for tokens in columns))
        for name, row in rows.items():
            print(f'{name:<9}' + ''.join(f"{row.get(tokens, ''):>14}" for tokens in columns))
    for i in range(0, len(others), 3):
        print('  ' + '   '.join(others[i:i + 3]))


def print_limits(results):
    lines = figures(results, 'kernels', 'limits')
    if not lines:
        return
    torch, clocks = figures(results, 'torch', 'limits'), figures(results, 'clocks', 'steps', 'limits').get('clocks')
    rates = [f"{name} {lines[name]['gb_per_s']:.0f} GB/s" for name in ('read', 'copy') if name in lines]
    rates += [f"matrix product of PyTorch {torch['peak']['tflop_per_s']:.0f} TFLOP/s"] if 'peak' in torch else []
    rates += [f"SM {clocks['sm_mhz']} MHz (most {clocks['sm_mhz_most']}), memory {clocks['memory_mhz']} MHz, {clocks['watts']} W"] if clocks else []
    print('limits: ' + ', '.join(rates))
    between = [f"{name.removeprefix('boundary ')} {line['us']:.2f}" for name, line in lines.items() if name.startswith('boundary')]
    for i in range(0, len(between), 4):
        print(('between empty kernels, µs: ' if i == 0 else '  ') + '; '.join(between[i:i + 4]))


def print_repeats(results):
    lines = results.get('phases', {}).get('repeats', {}).get('repeats', [])
    if not lines:
        return
    waits = figures(results, 'waits', 'repeats')
    bad = [line for line in lines if 'fault' in line or 'repeat' in line or line.get('wrong')]
    repeats = max((line['repeats'] for line in lines if 'repeats' in line), default=0)
    print(f"repeats: {len(lines) - len(bad)} of {len(lines)} cases have the same bits in {repeats} runs and the reference values ({sum(line.get('compared', 0) for line in lines)} compared)")
    for line in bad:
        what = []
        if 'fault' in line:
            wait = waits.get(line['name'])
            what.append(f"{line['fault']}{', waits at ' + wait['waits_at'] if wait else ''}")
        if 'repeat' in line:
            what.append(f"other bits in repeat {line['repeat']}, {line['bits']}")
        if line.get('wrong'):
            what.append(f"{line['wrong']} of {line['compared']} values wrong, {line['value']}")
        print(f"  {line['name']}: {line_of(line['kernel'])}: {'; '.join(what)}")


def print_steps(results, gates):
    steps, torch = figures(results, 'steps', 'steps', 'bench'), figures(results, 'torch')
    if any('steady_us' in line for line in steps.values()):
        print(f"\n{'step':<28}{'us':>10}{'steady us':>11}{'limit us':>10}{'share':>7}{'tok/s':>10}{'transformers us':>17}{'/us':>8}  gate")
    for name, line in steps.items():
        if 'steady_us' not in line:
            continue
        theirs = torch.get(name.removeprefix('deterministic '))
        beside = f"{theirs['us']:>17.0f}{theirs['us'] / line['steady_us']:>8.2f}" if theirs else ' ' * 25
        if name in MIN_SHARES and 'steady_share' in line:
            beside += gates.check(name, line['steady_share'] >= MIN_SHARES[name])
        print(f"{name:<28}{line['us']:>10.0f}{line['steady_us']:>11.0f}{shown(line, 'limit_us', '.0f'):>10}{shown(line, 'steady_share', '.0%'):>7}{line['tokens_per_s']:>10.0f}{beside}")
    for name, line in torch.items():
        if name.startswith('generate'):
            print(f"{name + ' by transformers':<28}{line['us']:>10.0f}  us per token, including the prompt")


def print_ablations(results):
    """Times without a feature, relative to those with all."""
    table, columns = {}, []
    for name, line in figures(results, 'steps', 'ablations').items():
        match = re.match(r'without (\w+): (.*)', name)
        if match and 'steady_us' in line:
            table.setdefault(match[1], {})[match[2]] = line['steady_us']
            columns += [match[2]] if match[2] not in columns else []
    base = table.pop('none', None)
    if not base:
        return
    print(f"\n{'ablations: steady µs, then ×':<28}" + ''.join(f'{column:>16}' for column in columns))
    print(f"{'all features':<28}" + ''.join(f"{base.get(column, math.nan):>16.0f}" for column in columns))
    for feature, row in table.items():
        print(f"{'without ' + feature:<28}" + ''.join(f'{row[column] / base[column]:>16.2f}' if column in row and column in base else f"{'–':>16}" for column in columns))


def short_kernel(mangled):
    match = re.search(r'\d+([a-z][a-z_]*_kernel)(I.*)?', mangled)
    if not match:
        return mangled
    arguments = re.findall(r'L[bijl](\d+)E', (match[2] or '').split('Ev')[0])
    blocks = mangled.rsplit(' x', 1)[-1]
    return match[1] + (f"<{','.join(arguments)}>" if arguments else '') + ' x' + blocks


def print_timeline(results):
    lines = results.get('phases', {}).get('timeline', {}).get('timeline', [])
    steps = {}
    for line in lines:
        steps.setdefault(line['step'], []).append(line)
    for step, kernels in steps.items():
        kernels.sort(key=lambda line: -line['us'] * line['runs'])
        least = max(1, min(line['runs'] for line in kernels))
        print(f"timeline of {step} (four layers): " + ', '.join(f"{short_kernel(line['name'])} {line['us']:.1f} µs × {line['runs'] / least:.0f}" for line in kernels[:8]))


def print_counters(results):
    lines = results.get('phases', {}).get('counters', {}).get('counters', [])
    if lines:
        print('\nncu                            us  DRAM tensor  warps  regs  conflicts  stalls')
    for line in lines:
        print(f"{line['name']:<28}{shown(line, 'us', '.1f'):>6}{shown(line, 'dram_percent', '.0f'):>6}{shown(line, 'tensor_percent', '.0f'):>7}{shown(line, 'warps_percent', '.0f'):>7}{shown(line, 'registers', 'd'):>6}"
              f"{shown(line, 'bank_conflicts', 'd'):>11}  {line.get('stalls', '–')}")


def print_serve(results, gates):
    for name, line in figures(results, 'serve').items():
        if 'ms' in line:
            print(f"{name:<26}{line['ms']:>10.2f} ms{gates.check(name, line['ms'] <= MAX_MS[name]) if name in MAX_MS else ''}")
        else:
            print(f"{name}: " + ', '.join(f'{field} {value}' for field, value in line.items() if field != 'name' and not isinstance(value, dict)))


def print_phases(results):
    for name in PHASES:
        phase = results.get('phases', {}).get(name)
        if phase is None:
            continue
        counts = f"{len(phase.get('passed', []))} passed, {len(phase.get('failed', {}))} failed" if phase.get('passed') or phase.get('failed') else ''
        if phase['status'] == 'skipped':
            counts = ' | '.join(phase.get('log_end', '').strip().splitlines()[-1:])[:150]
        print(f"{name:<10} {phase['status']:<9} {phase['seconds']:>6.1f} s  {counts}")
        for test, why in phase.get('failed', {}).items():
            print(f'    FAILED {test}: {why[0][:150] if why else ""}')
            if test in phase.get('waits', {}):
                print(f"        waits: {phase['waits'][test][:220]}")
        if phase['status'] in ('failed', 'timed out') and not phase.get('failed'):
            print('    ' + ' | '.join(phase.get('log_end', '').strip().splitlines()[-2:])[:200])
    missing = [name for name in PHASES if name not in results.get('phases', {})]
    print('not run: ' + (', '.join(missing) or 'none'))


def print_tables(results):
    machine = results.get('machine', {})
    gates = Gates()
    print(f"{machine.get('name', '?')}, driver {machine.get('driver_version', '?')}, SM clock {machine.get('clocks.sm', '?')}, commit {results.get('commit', '?')[:12]}")
    print_serve(results, gates)
    print_kernels(results, gates)
    print_counters(results)
    print_timeline(results)
    print_ablations(results)
    print_steps(results, gates)
    print_limits(results)
    print_repeats(results)
    if gates.passed:
        print(gates.summary())
    print_phases(results)
