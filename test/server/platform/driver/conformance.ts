/** Tests that every driver must pass, whatever it runs replicas in. */
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type {
  Driver,
  DriverHandle,
  ReplicaAddress,
  ReplicaEvent,
  ReplicaSpec,
} from '../../../../server/platform/driver/driver';
import type { LogLine } from '../../../../server/platform/driver/logs/log-line';
import type { LogStore } from '../../../../server/platform/driver/logs/log-store';

export interface Subject {
  /** Opens the driver on a data folder. A second call stands for a later service process. */
  open(dataDir: string): Promise<{ driver: Driver; logs: LogStore }>;
  /** Where a start script must listen: literal values, or expressions that read its variables. */
  host: string;
  port: string;
  /** Whether replicas have namespaces. */
  isIsolated: boolean;
  /**
   * Starts replicas from another process, kills it with SIGKILL once each replica has written a line, and returns their
   * references.
   */
  startElsewhere(dataDir: string, specs: readonly ReplicaSpec[]): Promise<string[]>;
  /** Whether the end of a replica is on record, while no driver runs. */
  hasEnded(dataDir: string, spec: ReplicaSpec): boolean;
}

const NODE = process.execPath;
/** Returns a start script that runs `code` in Node.js. `code` must not contain single quotes. */
export const node = (code: string): string => `exec '${NODE}' -e '${code}'`;

export function newSpec(more: Partial<ReplicaSpec> = {}): ReplicaSpec {
  const id = randomBytes(8).toString('hex');
  return {
    id: `rep_${id}`,
    logId: `ver_${id}`,
    ordinal: 0,
    startCommand: 'sleep 1000',
    runtimeArgs: [],
    isProduction: true,
    cpuMillis: 1_000,
    memoryMb: 512,
    gpuUuids: [],
    env: {},
    inputs: [],
    home: null,
    cache: null,
    healthPath: '/v1/models',
    secret: 'a-secret-of-the-replica',
    ...more,
  };
}

export function get(address: ReplicaAddress, path: string): Promise<{ status: number; body: string }> {
  const target = address.type === 'unix' ? { socketPath: address.path } : { host: address.host, port: address.port };
  return new Promise((resolve, reject) => {
    request({ ...target, path, agent: false }, (response) => {
      let body = '';
      response
        .setEncoding('utf8')
        .on('data', (text: string) => {
          body += text;
        })
        .on('end', () => resolve({ status: response.statusCode!, body }))
        .on('error', reject);
    })
      .on('error', reject)
      .end();
  });
}

type Type = ReplicaEvent['type'];
type EventOf<T extends Type> = Extract<ReplicaEvent, { type: T }>;

/** Records all events of a driver and waits for expected ones. */
export class Listener {
  readonly events: ReplicaEvent[] = [];
  #waiters: (() => void)[] = [];

  constructor(driver: Driver) {
    driver.observe((event) => {
      this.events.push(event);
      this.#waiters.splice(0).forEach((wake) => wake());
    });
  }

  async next<T extends Type>(
    { id }: ReplicaSpec,
    type: T,
    matches: (event: EventOf<T>) => boolean = () => true,
  ): Promise<EventOf<T>> {
    for (;;) {
      const found = this.events.find(
        (event): event is EventOf<T> => event.replicaId === id && event.type === type && matches(event as EventOf<T>),
      );
      if (found !== undefined) return found;
      await new Promise<void>((resolve) => this.#waiters.push(resolve));
    }
  }

  of({ id }: ReplicaSpec): Type[] {
    return this.events.filter(({ replicaId }) => replicaId === id).map(({ type }) => type);
  }
}

export function conformance(name: string, subject: Subject): void {
  describe(`a driver: ${name}`, () => {
    let dataDir: string;
    let driver: Driver;
    let logs: LogStore;
    let listener: Listener;
    let specs: ReplicaSpec[];

    const server = (handler: string, { host = subject.host, port = subject.port, before = '' } = {}): string =>
      node(
        `${before} require("http").createServer((request, reply) => { ${handler} }).listen(${port}, ${host}, () => console.log("listening"))`,
      );
    const OK = 'reply.end("fine " + request.url)';

    const start = async (more: Partial<ReplicaSpec> = {}): Promise<{ spec: ReplicaSpec; handle: DriverHandle }> => {
      const spec = newSpec(more);
      specs.push(spec);
      return { spec, handle: await driver.ensure(spec) };
    };
    const linesOf = async ({ logId }: ReplicaSpec, stream?: LogLine['stream']): Promise<string[]> =>
      (await logs.read(logId, { after: 0, limit: 10_000, ...(stream === undefined ? {} : { stream }) })).lines.map(
        ({ text }) => text,
      );
    /** The supervisor's last lines may still be in its spool. */
    const untilLogged = async (spec: ReplicaSpec, text: string): Promise<void> => {
      for await (const lines of logs.follow(spec.logId, 0, { text }, AbortSignal.timeout(100_000)))
        if (lines.length > 0) return;
      throw new Error(`expected a line with ${text}`);
    };
    const reopen = async (): Promise<void> => {
      ({ driver, logs } = await subject.open(dataDir));
      listener = new Listener(driver);
    };

    beforeAll(async () => {
      dataDir = mkdtempSync(join(tmpdir(), 'capstan-driver-'));
      await reopen();
    });
    beforeEach(() => {
      specs = [];
    });
    afterEach(() => Promise.all(specs.map(({ id }) => driver.stop(id, 0))));
    afterAll(async () => {
      await driver.detach();
      await logs.close();
      rmSync(dataDir, { recursive: true, force: true });
    });

    test('a replica starts, serves, writes its log and has a reference', async () => {
      const { spec, handle } = await start({ startCommand: server(OK) });
      await listener.next(spec, 'ready');
      expect(await get(handle.address, '/some/path')).toEqual({ status: 200, body: 'fine /some/path' });
      await untilLogged(spec, 'listening');
      expect(await driver.ensure(spec)).toEqual(handle);
      expect(handle.reference).not.toBe('');
      expect((await driver.usage(spec.id))!.memoryMb).toBeGreaterThan(5);
    });

    test('only deployments have the production variable', async () => {
      const print = 'printf "[%s]\\n" "${PLATFORM_SERVING_PRODUCTION-unset}"';
      const { spec: deployment } = await start({ startCommand: print, env: { PLATFORM_SERVING_PRODUCTION: '' } });
      const { spec: container } = await start({
        startCommand: print,
        isProduction: false,
        env: { PLATFORM_SERVING_PRODUCTION: 'yes' },
      });
      await Promise.all([deployment, container].map((spec) => listener.next(spec, 'exited')));
      expect(await linesOf(deployment, 'stdout')).toEqual(['[1]']);
      expect(await linesOf(container, 'stdout')).toEqual(['[unset]']);
    });

    test('a training container serves on its own port', async () => {
      const script = node(
        'require("http").createServer((request, reply) => reply.end("container")).listen(process.env.PLATFORM_SERVING_PORT, process.env.PLATFORM_SERVING_HOST)',
      );
      const { spec, handle } = await start({ startCommand: script, isProduction: false });
      await listener.next(spec, 'ready');
      expect((await get(handle.address, '/')).body).toBe('container');
    });

    test('a replica sees its own environment and nothing of the service process', async () => {
      process.env.CAPSTAN_TEST_OF_THE_SERVICE = 'leaked';
      const { spec } = await start({ startCommand: 'env', env: { MINE: 'a b=c "d" $e' } });
      delete process.env.CAPSTAN_TEST_OF_THE_SERVICE;
      await listener.next(spec, 'exited');
      const lines = await linesOf(spec, 'stdout');
      expect(lines).toContain('MINE=a b=c "d" $e');
      expect(lines.join('\n')).not.toContain('leaked');
    });

    test('missing data is reported before anything starts', async () => {
      await expect(start({ inputs: [{ mount: 'input0', path: join(dataDir, 'nothing') }] })).rejects.toMatchObject({
        reason: 'data_binding_missing',
      });
      await expect(start({ home: { path: join(dataDir, 'nothing'), mode: 'copy' } })).rejects.toMatchObject({
        reason: 'data_binding_missing',
      });
    });

    test('inputs are mounted, and each start gets a fresh copy of its home', async () => {
      const input = join(dataDir, `input-${randomBytes(4).toString('hex')}`);
      const home = `${input}-home`;
      for (const folder of [input, home]) {
        mkdirSync(folder);
        chmodSync(folder, 0o755);
        writeFileSync(join(folder, 'file'), 'content');
      }
      const script = 'cat "$PLATFORM_INPUT_DIR/input0/file" file; echo changed > file; pwd';
      for (let i = 0; i < 2; i++) {
        const { spec } = await start({
          startCommand: script,
          inputs: [{ mount: 'input0', path: input }],
          home: { path: home, mode: 'copy' },
        });
        await listener.next(spec, 'exited');
        expect((await linesOf(spec, 'stdout'))[0]).toMatch(/^contentcontent/);
      }
    });

    test('a server on the wrong port is reported', async () => {
      const { spec } = await start({ startCommand: server(OK, { port: '8080' }) });
      const { reason, message } = await listener.next(
        spec,
        'misplaced',
        (event) => event.reason !== 'port_80_not_bound',
      );
      expect([reason, message]).toEqual(['wrong_port', expect.stringContaining('8080')]);
      expect(listener.of(spec)).not.toContain('ready');
    });

    test('a failing health path is reported, until the replica becomes ready', async () => {
      const { spec, handle } = await start({
        startCommand: server('isUp ||= request.url === "/begin"; reply.statusCode = isUp ? 200 : 404; reply.end()', {
          before: 'let isUp = false;',
        }),
        healthPath: '/up',
      });
      expect(await listener.next(spec, 'misplaced', (event) => event.reason === 'health_check_failed')).toMatchObject({
        message: expect.stringContaining('/up returned 404'),
      });
      expect(listener.of(spec)).not.toContain('ready');
      await get(handle.address, '/begin');
      await listener.next(spec, 'ready');
    });

    test('a crash is reported with its exit code after its complete log', async () => {
      const { spec } = await start({ startCommand: 'echo one; echo two >&2; printf three; exit 3' });
      expect(await listener.next(spec, 'exited')).toMatchObject({ exitCode: 3, signal: null, wasStopped: false });
      expect((await linesOf(spec)).sort()).toEqual(['Ended with exit code 3', 'one', 'three', 'two'].sort());
      expect(await linesOf(spec, 'stderr')).toEqual(['two']);
    });

    test('an exit by signal is reported as such', async () => {
      const { spec } = await start({ startCommand: 'kill -SEGV $$' });
      expect(await listener.next(spec, 'exited')).toMatchObject({ exitCode: null, signal: 'SIGSEGV' });
    });

    test('a foreign SIGKILL is reported as such, and not as lack of memory', async () => {
      const { spec } = await start({ startCommand: 'kill -KILL $$' });
      const event = await listener.next(spec, 'exited');
      expect(event).toMatchObject({
        exitCode: null,
        signal: 'SIGKILL',
        wasStopped: false,
        message: expect.stringContaining('signal 9'),
      });
      expect(event).not.toHaveProperty('cause');
    });

    test('a slow start is not reported as an exit or a failure', async () => {
      const handler = 'if (Date.now() - began < 600) { reply.statusCode = 503 } reply.end()';
      const { spec } = await start({ startCommand: server(handler, { before: 'const began = Date.now();' }) });
      await listener.next(spec, 'ready');
      expect(listener.of(spec).filter((type) => type === 'exited' || type === 'unready')).toEqual([]);
    });

    test('a replica that becomes unhealthy and recovers is reported both times', async () => {
      const { spec, handle } = await start({
        startCommand: server(
          'if (request.url === "/break") isBroken = true; if (request.url === "/mend") isBroken = false; if (isBroken) reply.statusCode = 500; reply.end()',
          { before: 'let isBroken = false;' },
        ),
      });
      await listener.next(spec, 'ready');
      await get(handle.address, '/break');
      expect((await listener.next(spec, 'unready')).message).toContain('500');
      await get(handle.address, '/mend');
      for (;;) {
        if (listener.of(spec).filter((type) => type === 'ready').length === 2) break;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    });

    test('a replica over its memory limit is killed and reported as out of memory', async () => {
      const hog = node(
        'const all = []; setInterval(() => { if (all.length < 32) all.push(Buffer.alloc(16 << 20, 1)) }, 20)',
      );
      const { spec } = await start({ startCommand: hog, memoryMb: 128 });
      const isLimited = driver.isolation.reason.includes('limited by control groups');
      expect(await listener.next(spec, 'exited')).toMatchObject({
        cause: 'out_of_memory',
        wasStopped: false,
        message: expect.stringContaining(isLimited ? 'Killed by the kernel' : ''),
      });
    });

    test('stop lets a replica end gracefully', async () => {
      const { spec } = await start({
        startCommand: node(
          'process.on("SIGTERM", () => { console.log("bye"); process.exit(0) }); setInterval(() => {}, 1000); console.log("up")',
        ),
      });
      await untilLogged(spec, 'up');
      await driver.stop(spec.id, 20_000);
      expect(await listener.next(spec, 'exited')).toMatchObject({ exitCode: 0, wasStopped: true });
      expect(await linesOf(spec, 'stdout')).toEqual(['up', 'bye']);
      await driver.stop(spec.id, 0);
    });

    test('a replica that ignores TERM is killed after the grace period with all its processes', async () => {
      const marker = join(dataDir, 'replicas');
      const { spec } = await start({
        startCommand: `trap "" TERM; (trap "" TERM; sleep 1000) & echo up; while :; do sleep 1; done`,
      });
      await untilLogged(spec, 'up');
      await driver.stop(spec.id, 300);
      expect(await listener.next(spec, 'exited')).toMatchObject({ wasStopped: true });
      expect(existsSync(marker)).toBe(true);
      expect(await driver.usage(spec.id)).toBeUndefined();
    });

    describe('after a crash of the service', () => {
      const BYE =
        'process.on("SIGTERM", () => { console.log("bye"); process.exit(0) }); setInterval(() => {}, 1000); console.log("up")';
      let serving: ReplicaSpec;
      let ending: ReplicaSpec;
      let forgotten: ReplicaSpec;
      let references: string[];

      beforeAll(async () => {
        const input = join(dataDir, `input-${randomBytes(4).toString('hex')}`);
        mkdirSync(input);
        chmodSync(input, 0o755);
        serving = newSpec({ startCommand: server('console.log("asked " + request.url); reply.end()') });
        ending = newSpec({
          startCommand:
            'echo first; until [ -e "$PLATFORM_INPUT_DIR/input0/go" ]; do sleep 0.1; done; echo last; exit 7',
          inputs: [{ mount: 'input0', path: input }],
        });
        forgotten = newSpec({ startCommand: node(BYE) });
        await driver.detach();
        await logs.close();
        references = await subject.startElsewhere(dataDir, [serving, ending, forgotten]);
        writeFileSync(join(input, 'go'), '');
        while (!subject.hasEnded(dataDir, ending)) await new Promise((resolve) => setTimeout(resolve, 10));
        await reopen();
      });
      afterAll(() => Promise.all([serving, ending, forgotten].map(({ id }) => driver.stop(id, 0))));

      test('a replica keeps serving, is adopted, and loses no log line', async () => {
        const handle = await driver.adopt(references[0], serving);
        expect(handle?.reference).toBe(references[0]);
        await listener.next(serving, 'ready');
        for (let i = 0; i < 50; i++) await get(handle!.address, `/${i}`);
        await driver.stop(serving.id, 5_000);
        const { lines } = await logs.read(serving.logId, { after: 0, limit: 10_000 });
        expect(lines.map(({ seq }) => seq)).toEqual(lines.map((_, i) => i + 1));
        expect(lines.filter(({ text }) => /^asked \/\d/.test(text)).map(({ text }) => text)).toEqual(
          Array.from({ length: 50 }, (_, i) => `asked /${i}`),
        );
        expect(lines.filter(({ text }) => text === 'listening')).toHaveLength(1);
      });

      test('the exit of a replica while no service ran is reported, with its last lines', async () => {
        expect(await driver.adopt(references[1], ending)).toBeDefined();
        expect(await listener.next(ending, 'exited')).toMatchObject({ exitCode: 7 });
        expect(await linesOf(ending, 'stdout')).toEqual(['first', 'last']);
      });

      test('a replica that was not adopted can be stopped, and keeps its last lines', async () => {
        await driver.stop(forgotten.id, 20_000);
        expect(listener.of(forgotten)).toContain('exited');
        expect(await linesOf(forgotten, 'stdout')).toEqual(['up', 'bye']);
      });
    });

    test('a disconnect of the client reaches the server, and large bodies pass both ways', async () => {
      const handler =
        'if (request.url === "/echo") return request.pipe(reply); if (request.url !== "/hang") return reply.end(); console.log("asked"); reply.on("close", () => console.log("left"))';
      const {
        spec,
        handle: { address },
      } = await start({ startCommand: server(handler) });
      await listener.next(spec, 'ready');
      const target =
        address.type === 'unix' ? { socketPath: address.path } : { host: address.host, port: address.port };
      const hanging = request({ ...target, path: '/hang', agent: false }).on('error', () => {});
      hanging.end();
      await untilLogged(spec, 'asked');
      hanging.destroy();
      await untilLogged(spec, 'left');
      const body = randomBytes(8 << 20);
      const echoed = await new Promise<Buffer>((resolve, reject) => {
        const parts: Buffer[] = [];
        request({ ...target, path: '/echo', method: 'POST', agent: false }, (response) =>
          response.on('data', (part: Buffer) => parts.push(part)).on('end', () => resolve(Buffer.concat(parts))),
        )
          .on('error', reject)
          .end(body);
      });
      expect(echoed.equals(body)).toBe(true);
    });

    test('an unknown reference is not adopted', async () => {
      expect(await driver.adopt('1:2:3', newSpec())).toBeUndefined();
    });

    test('a replica can be restarted under the same id with the same log', async () => {
      const { spec } = await start({ startCommand: 'echo run; exit 1' });
      await listener.next(spec, 'exited');
      listener.events.length = 0;
      await driver.ensure(spec);
      await listener.next(spec, 'exited');
      expect(await linesOf(spec, 'stdout')).toEqual(['run', 'run']);
    });

    test('splits long lines, replaces invalid UTF-8 and redacts keys', async () => {
      const key = 'sk-cap1_0123456789AB_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1GlQkh';
      const { spec } = await start({
        startCommand: node(
          `process.stdout.write("x".repeat(200000) + "\\n"); process.stdout.write(Buffer.from([0xff, 0x41, 0x00, 0x0a])); console.log("key ${key}")`,
        ),
      });
      await listener.next(spec, 'exited');
      const lines = await linesOf(spec, 'stdout');
      expect(lines.slice(0, -2).join('')).toBe('x'.repeat(200_000));
      expect(lines.slice(0, -2).every(({ length }) => length <= 65_536)).toBe(true);
      expect(lines.at(-2)).toBe('\ufffdA ');
      expect(lines.at(-1)).toBe('key sk-cap1_0123456789AB_…lQkh');
    });

    if (!subject.isIsolated) return;

    test('a server on loopback only is reported', async () => {
      const { spec } = await start({ startCommand: server(OK, { host: '"127.0.0.1"' }) });
      expect((await listener.next(spec, 'misplaced', (event) => event.reason !== 'port_80_not_bound')).reason).toBe(
        'bound_to_loopback',
      );
      expect(listener.of(spec)).not.toContain('ready');
    });

    test('a failed network access is explained in the log', async () => {
      const { spec } = await start({
        startCommand: node(
          'require("net").connect(443, "192.0.2.1").on("error", (error) => console.error(error.message)); setInterval(() => {}, 1000)',
        ),
      });
      await untilLogged(
        spec,
        'The replica tried to reach another machine: at isolation level L2 a deployment cannot reach other machines. Mount all files that it needs as data sources',
      );
      expect((await linesOf(spec, 'stderr'))[0]).toContain('ENETUNREACH');
    });

    test('two replicas that both listen on 0.0.0.0:80 run side by side', async () => {
      const started = await Promise.all(
        ['first', 'second'].map((text) => start({ startCommand: server(`reply.end("${text}")`) })),
      );
      await Promise.all(started.map(({ spec }) => listener.next(spec, 'ready')));
      expect(await Promise.all(started.map(async ({ handle }) => (await get(handle.address, '/')).body))).toEqual([
        'first',
        'second',
      ]);
    });

    test('a writable home is used in place, and keeps its owner', async () => {
      const home = join(dataDir, `home-${randomBytes(4).toString('hex')}`);
      mkdirSync(home);
      writeFileSync(join(home, 'file'), 'content');
      chmodSync(home, 0o755);
      const run = async () => {
        const { spec } = await start({
          startCommand: 'echo more > new && echo written',
          home: { path: home, mode: 'rw' },
          isProduction: false,
        });
        await listener.next(spec, 'exited');
        return linesOf(spec, 'stdout');
      };
      if (process.geteuid!() === 0) {
        await expect(run()).rejects.toMatchObject({
          reason: 'data_binding_missing',
          message: expect.stringContaining('chown -R 1879048080 FOLDER'),
        });
        expect([home, join(home, 'file')].map((path) => statSync(path).uid)).toEqual([0, 0]);
        chownSync(home, 1_879_048_080, 0);
      }
      expect(await run()).toEqual(['written']);
      expect(statSync(join(home, 'file')).uid).toBe(process.geteuid!());
    });

    test('a data folder that was replaced by a link is not mounted', async () => {
      const link = join(dataDir, `link-${randomBytes(4).toString('hex')}`);
      symlinkSync(join(dataDir, 'logs'), link);
      const isRefused = { message: expect.stringContaining('expected a path without links') };
      await expect(start({ inputs: [{ mount: 'input0', path: join(link, '.') }] })).rejects.toMatchObject(isRefused);
      await expect(start({ inputs: [{ mount: 'input0', path: link }] })).rejects.toMatchObject(isRefused);
    });

    test('inputs are read-only, and the service and other replicas are hidden', async () => {
      const input = join(dataDir, 'an-input');
      mkdirSync(input);
      chmodSync(input, 0o755);
      const script = `echo x > /platform/input/input0/file || echo read-only; ls ${dataDir} || echo hidden; ls /platform/home && echo x > /platform/home/file && echo writable; ps ax 2>/dev/null | grep -c sleep; cat /proc/net/route | wc -l`;
      const { spec } = await start({ startCommand: script, inputs: [{ mount: 'input0', path: input }] });
      await listener.next(spec, 'exited');
      const lines = await linesOf(spec, 'stdout');
      expect(lines).toEqual(expect.arrayContaining(['read-only', 'hidden', 'writable']));
      expect(existsSync(join(input, 'file'))).toBe(false);
    });
  });
}
