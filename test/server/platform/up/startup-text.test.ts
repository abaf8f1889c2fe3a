import { Targets } from '../../../../server/platform/gateway/targets';
import { type Start, startupText } from '../../../../server/platform/up/startup-text';

const START: Start = {
  addresses: { console: 'http://127.0.0.1:8090', serving: 'http://127.0.0.1:8091' } as Start['addresses'],
  servingDomain: undefined,
  transport: 'uws',
  admin: undefined,
  dataDir: '/data',
  database: 'file /data/capstan.db',
  driver: 'process',
  isolation: { level: 'L2', reason: 'a test' },
  targets: new Targets(),
  firstRun: { type: 'link', token: 'T0ken' },
};

test('the setup link carries its token after #, where no server and no Referer sees it', () => {
  const [link = '', ...more] = startupText(START).match(/\S*T0ken\S*/g) ?? [];
  const { origin, pathname, search, hash } = new URL(link);
  expect({ origin, pathname, search, hash, more }).toEqual({
    origin: START.addresses.console,
    pathname: '/setup',
    search: '',
    hash: '#T0ken',
    more: [],
  });
});

test('prints no setup link once there is an administrator', () => {
  expect(startupText({ ...START, firstRun: { type: 'done' } })).not.toContain('/setup');
});
