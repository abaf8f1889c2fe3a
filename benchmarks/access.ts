// Measures the key check with 100,000 keys: the time of a warm check and the memory of the table.
//   node -r ./test/oracle/register-ts.cjs --expose-gc benchmarks/access.ts [keys] [--json]
import os from 'node:os';
import { BudgetMeter } from '../server/access/check/budget';
import { type CheckedRequest, KeyCheck } from '../server/access/check/check';
import { generateKey } from '../server/base/key-format';
import { KeyUses } from '../server/access/check/uses';
import { KeyLimiter } from '../server/access/check/limiter';
import { KeyTable } from '../server/access/check/table';
import { Verifier } from '../server/access/check/verifier';

const ROUNDS = 20;
const CHECKS = 5_000;
const numKeys = Number(process.argv[2] ?? 100_000) || 100_000;
const target = { id: 'dep_00000000000000000000000000', ownerId: 'usr_00000000000000000000000000' };
const monotonicMs = () => performance.now();

/** Fills the table. Strings are copies, as in rows from the database. */
function fill(table: KeyTable, check: KeyCheck, secrets: string[]): void {
  for (let i = 0; i < numKeys; i++) {
    const { publicId, secret } = generateKey();
    const copy = (text: string) => Buffer.from(text, 'latin1').toString('latin1');
    table.apply({
      id: copy(`key_${String(i).padStart(26, '0')}`),
      publicId: copy(publicId),
      ownerId: copy(target.ownerId),
      isEnabled: true,
      expiresAt: i % 2 === 0 ? null : 4_000_000_000_000 + i,
      limits: null,
      allowedCidrs: null,
      budget: null,
      budgetUse: null,
      deployments: i % 2 === 0 ? null : [copy(target.id)],
      secrets: [
        {
          version: 1,
          hash: `$argon2id$v=19$m=19456,t=2,p=1$${secret.slice(21, 43)}$${secret.slice(15, 58)}`,
          validUntil: null,
        },
      ],
      rev: i + 1,
    });
    check.rememberSecret(publicId, 1, secret);
    secrets.push(secret);
  }
}

function usedBytes(): number {
  globalThis.gc?.();
  globalThis.gc?.();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

interface Figures {
  /** CPU time of this process per check. Other processes do not affect it. */
  cpu: number;
  p50: number;
  p99: number;
}

/** Returns microseconds per check. Requests are created outside the timed section. */
function measure(request: (i: number) => CheckedRequest): Figures {
  const samples = new Float64Array(CHECKS);
  const requests = Array.from({ length: CHECKS }, (_, i) => request(i));
  const cpuBefore = process.cpuUsage();
  for (let i = 0; i < CHECKS; i++) void check.check(requests[i], target);
  const { user, system } = process.cpuUsage(cpuBefore);
  for (let i = 0; i < CHECKS; i++) {
    const fresh = request(i);
    const begin = process.hrtime.bigint();
    void check.check(fresh, target);
    samples[i] = Number(process.hrtime.bigint() - begin) / 1000;
  }
  samples.sort();
  const at = (share: number) => samples[Math.floor(CHECKS * share)];
  return { cpu: (user + system) / CHECKS, p50: at(0.5), p99: at(0.99) };
}

const table = new KeyTable();
const uses = new KeyUses();
const check = new KeyCheck({
  table,
  uses,
  budgets: new BudgetMeter(() => 0),
  isCutting: true,
  limiter: new KeyLimiter(monotonicMs),
  now: Date.now,
  isFresh: () => true,
  verifier: new Verifier({ maxRunning: 2, maxWaiting: 32, maxFailuresPerMinute: 20, monotonicMs }),
});
const secrets: string[] = [];
const before = usedBytes();
fill(table, check, secrets);
const withSecrets = usedBytes();
// The benchmark itself keeps each secret: a string of 59 characters (80 bytes) and 8 bytes in an array.
const tableBytes = withSecrets - before - secrets.length * (80 + 8);

let seed = 1;
const next = () => (seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff);
const requestWith = (secret: string): CheckedRequest => ({
  headers: [
    ['host', 'localhost'],
    ['content-type', 'application/json'],
    ['authorization', `Bearer ${secret}`],
  ],
  remoteAddress: '127.0.0.1',
});
const unknown = Array.from({ length: 1000 }, () => generateKey().secret);
const wrong = Array.from({ length: 1000 }, (_, i) => generateKey(secrets[i].slice(8, 20)).secret);
const rows = {
  'good key': () => requestWith(secrets[next() % numKeys]),
  'wrong secret': (i: number) => requestWith(wrong[i % 1000]),
  'unknown id': (i: number) => requestWith(unknown[i % 1000]),
};
const results = Object.entries(rows).map(([name, request]) => {
  const rounds = Array.from({ length: ROUNDS + 2 }, () => measure(request))
    .slice(2)
    .sort((a, b) => a.p99 - b.p99);
  return { name, median: rounds[Math.floor(ROUNDS / 2)], quietest: rounds[0] };
});
const [load] = os.loadavg();
if (process.argv.includes('--json'))
  console.log(JSON.stringify({ node: process.version, load, numKeys, tableBytes, results }));
else {
  console.log(
    `${numKeys} keys, all warm: ${(tableBytes / 1e6).toFixed(1)} MB (${Math.round(tableBytes / numKeys)} bytes per key); node ${process.version}; load ${load.toFixed(1)}; µs per check, ${ROUNDS} rounds of ${CHECKS}`,
  );
  const line = ({ cpu, p50, p99 }: Figures) => `cpu ${cpu.toFixed(2)}  p50 ${p50.toFixed(2)}  p99 ${p99.toFixed(2)}`;
  for (const { name, median, quietest } of results)
    console.log(`${name.padEnd(14)} median round: ${line(median)}   quietest: ${line(quietest)}`);
}
