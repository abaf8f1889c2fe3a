import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fromConfigFile } from '../../../../server/cli/config-file';
import { fromEnvironment } from '../../../../server/cli/environment';
import { FlagValues } from '../../../../server/cli/flag-sources';
import { addressesOf, deploymentUrl, isLoopback, sessionGuardOf } from '../../../../server/platform/up/addresses';
import { resolveUpOptions, UP_FLAG_NAMES, UP_FLAGS } from '../../../../server/platform/cli/up-flags';

function flags(...pairs: [string, string][]): FlagValues {
  const values = new FlagValues();
  for (const [name, value] of pairs) values.add(UP_FLAG_NAMES.get(name)!, value, name);
  return values;
}

const ENV = { HOME: '/home/ada' };

describe('flags', () => {
  test('have defaults', () => {
    expect(resolveUpOptions([], ENV)).toMatchObject({
      dataDir: '/home/ada/.local/share/capstan',
      host: '127.0.0.1',
      port: 8090,
      servingPort: undefined,
      dataRoots: [],
      allowUnisolated: false,
      stopsDeployments: false,
    });
  });

  test('the command line overrides the environment, and the environment overrides the file', () => {
    const folder = mkdtempSync(join(tmpdir(), 'capstan-up-'));
    try {
      const file = join(folder, 'capstan.yaml');
      writeFileSync(file, 'port: 1\nserving_port: 2\nhost: 10.0.0.1\ndata-root: [/a, /b]\nallow-unisolated: true\n');
      const sources = [
        fromConfigFile(file, '--config', UP_FLAG_NAMES),
        fromEnvironment(
          { CAPSTAN_PORT: '3', CAPSTAN_SERVING_PORT: '4', DATABASE_URL: 'postgres://db/capstan' },
          UP_FLAG_NAMES,
        ),
        flags(['--port', '5']),
      ];
      expect(resolveUpOptions(sources, ENV)).toMatchObject({
        port: 5,
        servingPort: 4,
        host: '10.0.0.1',
        dataRoots: ['/a', '/b'],
        allowUnisolated: true,
        databaseUrl: 'postgres://db/capstan',
      });
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('suggests the nearest name for a mistyped setting', () => {
    const folder = mkdtempSync(join(tmpdir(), 'capstan-up-'));
    try {
      const file = join(folder, 'capstan.yaml');
      writeFileSync(file, 'servng-port: 2\n');
      expect(() => fromConfigFile(file, '--config', UP_FLAG_NAMES)).toThrow(
        'capstan.yaml: servng-port: unknown setting; did you mean serving-port?',
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test.each<[[string, string][], string]>([
    [[['--port', '65535']], '--port: expected a port up to 65534'],
    [
      [
        ['--port', '9000'],
        ['--serving-port', '9000'],
      ],
      '--serving-port: expected a port other than --port',
    ],
    [[['--bootstrap-email', 'a@b']], '--bootstrap-email and --bootstrap-password-file: expected both, got one'],
    [[['--ssl-keyfile', 'k']], '--ssl-keyfile and --ssl-certfile: expected both, got one'],
    [[['--admin-host', '0.0.0.0']], '--admin-host: expected --admin-port too'],
    [[['--serving-domain', 'a b']], "--serving-domain: expected a domain such as models.example.com, got 'a b'"],
    [[['--public-url', 'https://a/b']], '--public-url: expected a URL without a path'],
    [[['--trusted-proxy', 'ten']], '--trusted-proxy'],
    [
      [['--console-host', '10.0.0.1']],
      "--console-host: expected a host name such as console.example.com, got '10.0.0.1'",
    ],
    ...[
      ['--host', 'c.example.com'],
      ['--serving-url', 'https://c.example.com'],
      ['--serving-domain', 'example.com'],
      ['--serving-domain', 'c.example.com'],
    ].map(([flag, value]): [[string, string][], string] => [
      [
        ['--console-host', 'C.example.com'],
        [flag, value],
      ],
      "--console-host: expected a host name that --host, --serving-url and --serving-domain do not use, got 'c.example.com'",
    ]),
    [
      [
        ['--console-host', 'c.example.com'],
        ['--public-url', 'https://d.example.com'],
      ],
      '--public-url: expected the host name of --console-host, c.example.com, got',
    ],
    [[['--on-revoke', 'wait']], "--on-revoke: expected cut or finish, got 'wait'"],
  ])('refuses %j', (pairs, message) => {
    expect(() => resolveUpOptions([flags(...pairs)], ENV)).toThrow(message);
  });

  test('does not repeat an invalid database URL, which may contain a password', () => {
    expect(() => resolveUpOptions([flags(['--database-url', 'mysql://root:hunter2@db'])], ENV)).toThrow(
      /^--database-url: expected a postgres:\/\/ URL$/,
    );
  });

  test('every flag has help', () => {
    expect(UP_FLAGS.filter(({ help }) => help.length < 10)).toEqual([]);
  });
});

describe('addresses', () => {
  const options = {
    host: '127.0.0.1',
    consoleHost: undefined,
    publicUrl: undefined,
    servingUrl: undefined,
    tls: {},
  };

  test('come from the host and the ports', () => {
    expect(addressesOf(options, { console: 8090, serving: 8091 })).toEqual({
      console: 'http://127.0.0.1:8090',
      serving: 'http://127.0.0.1:8091',
    });
    expect(
      addressesOf({ ...options, host: '::1', tls: { certFile: 'c', keyFile: 'k' } }, { console: 443, serving: 444 }),
    ).toEqual({ console: 'https://[::1]', serving: 'https://[::1]:444' });
  });

  test('come from --public-url and --serving-url behind a proxy', () => {
    expect(
      addressesOf(
        { ...options, publicUrl: 'https://console.example.com', servingUrl: 'https://models.example.com' },
        { console: 1, serving: 2 },
      ),
    ).toEqual({ console: 'https://console.example.com', serving: 'https://models.example.com' });
  });

  test('of the console has the name of --console-host', () => {
    expect(addressesOf({ ...options, consoleHost: 'console.example.com' }, { console: 8090, serving: 8091 })).toEqual({
      console: 'http://console.example.com:8090',
      serving: 'http://127.0.0.1:8091',
    });
  });

  test.each([
    { consoleHost: undefined, isSecure: true, level: 'L2', guard: 'secret' },
    { consoleHost: 'console.example.com', isSecure: false, level: 'L2', guard: 'secret' },
    { consoleHost: 'console.example.com', isSecure: true, level: 'L1', guard: 'secret' },
    { consoleHost: 'console.example.com', isSecure: true, level: 'L2', guard: 'own-host' },
  ] as const)('sessions are guarded: %j', ({ consoleHost, isSecure, level, guard }) => {
    expect(sessionGuardOf({ consoleHost }, isSecure, level)).toBe(guard);
  });

  test('of a deployment end without a slash and without /v1', () => {
    const addresses = { console: 'http://a:1', serving: 'http://a:2' };
    expect(deploymentUrl(addresses, undefined, 'chat-x7')).toBe('http://a:2/d/chat-x7');
    expect(deploymentUrl(addresses, 'models.example.com', 'chat-x7')).toBe('http://chat-x7.models.example.com:2');
    expect(
      deploymentUrl({ ...addresses, serving: 'https://models.example.com' }, 'models.example.com', 'chat-x7'),
    ).toBe('https://chat-x7.models.example.com');
  });

  test.each([
    ['localhost', true],
    ['127.0.0.1', true],
    ['127.8.9.1', true],
    ['::1', true],
    ['0.0.0.0', false],
    ['::', false],
    ['192.168.1.2', false],
  ])('isLoopback(%s) is %s', (host, expected) => {
    expect(isLoopback(host)).toBe(expected);
  });
});
