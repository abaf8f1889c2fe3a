import { type HubKind, hubSettings } from '../../../ts/hub/settings';

const HOME = '/home/me';
const settings = (env: NodeJS.ProcessEnv = {}, hub?: string) =>
  hubSettings({ hub: hub as HubKind | undefined }, { HOME, ...env });

test.each<[env: NodeJS.ProcessEnv, cacheDir: string]>([
  [{}, '/home/me/.cache/huggingface/hub'],
  [{ XDG_CACHE_HOME: '/cache' }, '/cache/huggingface/hub'],
  [{ HF_HOME: '~/hf', XDG_CACHE_HOME: '/cache' }, '/home/me/hf/hub'],
  [{ HF_HOME: '/hf', HF_HUB_CACHE: '/models' }, '/models'],
  [{ HUGGINGFACE_HUB_CACHE: '/old' }, '/old'],
  [{ HF_HOME: '' }, '/home/me/.cache/huggingface/hub'],
])('%j keeps models in %s', (env, cacheDir) => {
  expect(settings(env).cacheDir).toBe(cacheDir);
});

test('the endpoint of the environment may have a path, and ends without a slash', () => {
  expect(settings().endpoint.href).toBe('https://huggingface.co/');
  expect(settings({ HF_ENDPOINT: 'https://mirror/hf/' }).endpoint.href).toBe('https://mirror/hf');
});

test.each(['mirror', 'ftp://mirror', 'https://me:secret@mirror', 'https://mirror/?a=secret', 'https://mirror/#x'])(
  'the endpoint %s is refused without showing it',
  (url) => {
    expect(() => settings({ HF_ENDPOINT: url })).toThrow(
      /^HF_ENDPOINT: expected a URL such as https:\/\/huggingface\.co, without a user name, got another text$/,
    );
  },
);

test.each(['1', 'true', 'YES', 'on'])('HF_HUB_OFFLINE=%s forbids requests', (value) => {
  expect(settings({ HF_HUB_OFFLINE: value }).isOffline).toBe(true);
  expect(settings({ TRANSFORMERS_OFFLINE: value }).isOffline).toBe(true);
});

test('ModelScope has its own address, branch and token', () => {
  expect(
    settings({ HF_TOKEN: 'hf_x', HF_ENDPOINT: 'https://mirror', MODELSCOPE_API_TOKEN: 'ms' }, 'modelscope'),
  ).toMatchObject({
    endpoint: new URL('https://modelscope.cn'),
    token: 'ms',
    defaultRevision: 'master',
    cacheDir: '/home/me/.cache/huggingface/modelscope',
  });
  expect(() => settings({}, 'other')).toThrow('hub: expected one of huggingface, modelscope');
});
