/** API objects of a small service. Some names and texts are hostile, as untrusted input may be. */
import { NO_QUOTAS, type QuotaUse } from '../../../../server/platform/accounts/quota-columns';
import type {
  AuditEvent,
  Canary,
  Capacity,
  Container,
  DataPull,
  DataPullPreview,
  DataSource,
  Deployment,
  DeploymentEvent,
  IdentityProvider,
  Image,
  Invitation,
  Key,
  LogLine,
  Me,
  Member,
  Metrics,
  Organization,
  OwnerQuota,
  RuntimeOptions,
  Session,
  Token,
  UpstreamVersion,
  Version,
  VersionSpec,
  Webhook,
  WebhookDelivery,
} from '../../../../server/platform/api/objects';

export const START_MS = Date.parse('2026-11-21T08:00:00.000Z');
export const at = (minutes: number) => new Date(START_MS + minutes * 60_000).toISOString();
export const id = (prefix: string, number: number) => `${prefix}_${String(number).padStart(26, '0')}`;

const NO_USE: QuotaUse = {
  used_deployments: 0,
  used_versions: 0,
  used_gpu: 0,
  used_cpu_millis: 0,
  used_memory_mb: 0,
  used_disk_mb: 0,
};
export const ME: Me = {
  id: id('usr', 1),
  email: 'ada@example.com',
  name: 'Ada Lovelace',
  locale: 'en',
  theme: 'light',
  is_admin: true,
  has_password: true,
  has_totp: false,
  recovery_codes_left: 0,
  ...NO_QUOTAS,
  quota_deployments: 10,
  organizations: [
    { id: id('org', 1), slug: 'acme', name: 'Acme Research', role: 'owner' },
    { id: id('org', 2), slug: 'lab', name: '语言实验室', role: 'viewer' },
  ],
  via: 'session',
  session_guard: 'secret',
  csrf_token: 'csrf',
  rev: 3,
};
export const HOSTILE = '<img src=x onerror="document.title=\'owned\'">\u202eevil\u001b[31m';
const SELF = { type: 'user', id: ME.id, name: ME.email } as const;
const ACME = { type: 'org', id: id('org', 1), name: 'acme' } as const;
const COMPUTE = { cpu_millis: 2_000, memory_mb: 4_096, gpu_count: 0, gpu_type: null };
export const RUNTIME: RuntimeOptions = {
  model: 'demo',
  hub: null,
  served_name: null,
  task: null,
  max_model_len: null,
  dtype: null,
  quantization: null,
  kv_cache_dtype: null,
  kv_cache_memory_mb: null,
  max_num_seqs: null,
  max_num_batched_tokens: null,
  gpu_memory_utilization: null,
  tensor_parallel_size: null,
  chat_template: null,
  tool_call_parser: null,
  reasoning_parser: null,
  prefix_caching: true,
  prefix_cache_disk_mb: null,
};
const PULL: DataPull = {
  hub: 'huggingface',
  model: 'Qwen/Qwen3-4B-GGUF:Q4_K_M',
  state: 'running',
  is_filled: false,
  error: null,
  note: null,
  commit: 'a9c98e602b9d36d2a2f7ba1eb0f5f31e4e8e5143',
  format: 'gguf',
  quantization: 'Q4_K_M',
  done_bytes: 1_073_741_824,
  total_bytes: 2_497_280_000,
  bytes_per_second: 47_185_920,
  has_token: false,
  requested_at: at(5),
  ended_at: null,
};

export const IMAGES: Image[] = [
  {
    id: id('img', 1),
    name: 'capstan',
    version: '0.1.0',
    type: 'builtin-runtime',
    gpu_required: false,
    default_start: null,
    owner: null,
    created_at: at(0),
  },
  {
    id: id('img', 2),
    name: 'python',
    version: '3.12',
    type: 'host-env',
    gpu_required: false,
    default_start: 'exec python3 -m http.server 80',
    owner: null,
    created_at: at(1),
  },
];
export const SOURCES: DataSource[] = [
  {
    id: id('dat', 1),
    name: 'qwen2.5-1.5b-instruct',
    type: 'model',
    owner: SELF,
    visibility: 'public',
    description: `Instruct weights ${HOSTILE}`,
    path: '/srv/capstan/data/qwen',
    size_bytes: 3_087_467_144,
    file_count: 11,
    digest: `sha256:${'ab'.repeat(32)}`,
    measurement: { state: 'measured', message: null, at: at(3) },
    pull: null,
    created_at: at(2),
    updated_at: at(2),
    rev: 3,
  },
  {
    id: id('dat', 2),
    name: 'ada-home',
    type: 'workspace',
    owner: SELF,
    visibility: 'private',
    description: null,
    path: '/srv/capstan/data/ada',
    size_bytes: null,
    file_count: null,
    digest: null,
    measurement: { state: 'failed', message: 'a file changed while it was read: notes.md', at: at(4) },
    pull: null,
    created_at: at(3),
    updated_at: at(3),
    rev: 4,
  },
];
/** Data sources that the service fills from the hub. */
export const PULLED: DataSource[] = [
  {
    ...SOURCES[1],
    id: id('dat', 3),
    name: 'Qwen/Qwen3-4B-GGUF:Q4_K_M',
    type: 'model',
    measurement: { state: 'pending', message: null, at: null },
    pull: PULL,
  },
  {
    ...SOURCES[1],
    id: id('dat', 4),
    name: 'llama',
    type: 'model',
    measurement: { state: 'pending', message: null, at: null },
    pull: {
      ...PULL,
      model: 'meta-llama/Llama-3.2-1B',
      state: 'failed',
      error: { code: 'access_denied', message: `meta-llama/Llama-3.2-1B is gated ${HOSTILE}` },
      total_bytes: null,
      done_bytes: 0,
      bytes_per_second: null,
      has_token: true,
    },
  },
];
export const PREVIEW: DataPullPreview = {
  repository: 'Qwen/Qwen3-4B-GGUF',
  revision: 'main',
  commit: PULL.commit!,
  format: 'gguf',
  quantization: 'Q8_0',
  files: [{ path: 'Qwen3-4B-Q8_0.gguf', size_bytes: 4_280_000_000 }],
  total_bytes: 4_280_000_000,
  free_disk_bytes: 80_000_000_000,
  unchecked_files: [],
  quantizations: [
    { name: 'Q4_K_M', size_bytes: 2_497_280_000, fits: true },
    { name: 'Q8_0', size_bytes: 4_280_000_000, fits: false },
  ],
  problem: null,
  fit: {
    weight_bytes: 4_400_000_000,
    kv_cache_bytes: 603_979_776,
    context_length: 4_096,
    available_bytes: 4_000_000_000,
    machine_bytes: 33_000_000_000,
    verdict: 'tight',
    suggestion: { variant: 'Q4_K_M', quantization: null },
  },
};
export const CAPACITY: Capacity = {
  driver: 'process',
  isolation: {
    level: 'L2',
    reason: 'namespaces of user, mount, network and process are there',
    outgoing_network: false,
    allows_start_scripts: true,
  },
  total: { cpu_millis: 8_000, memory_mb: 32_768, gpu_count: 1, gpu_type: null },
  free: { cpu_millis: 5_000, memory_mb: 21_504, gpu_count: 1, gpu_type: null },
  gpus: [{ uuid: 'GPU-4f1d', type: 'NVIDIA H200', memory_mb: 143_771, free: true }],
};

const SPEC: VersionSpec = {
  image_id: IMAGES[0].id,
  compute: COMPUTE,
  bindings: [
    {
      mount: 'input0',
      source_id: SOURCES[0].id,
      source_name: SOURCES[0].name,
      mode: 'ro',
      source_digest: SOURCES[0].digest,
    },
    { mount: 'home', source_id: SOURCES[1].id, source_name: SOURCES[1].name, mode: 'copy', source_digest: null },
  ],
  env: { LOG_LEVEL: 'info', HF_TOKEN: null },
  start_command: null,
  runtime: { ...RUNTIME, model: '/platform/input/input0', served_name: 'qwen' },
  health_path: '/v1/models',
  start_deadline_s: 1_200,
  grace_s: 30,
};
const SCRIPT =
  '#!/bin/sh\nPORT=8080\n[ -n "$PLATFORM_SERVING_PRODUCTION" ] && PORT=80\nexec python3 -m http.server --bind 0.0.0.0 "$PORT"\n';
const REASON = {
  code: 'wrong_port' as const,
  message: 'the process listens on 0.0.0.0:8080, and nothing on port 80',
  exit_code: null,
  last_lines: ['Serving HTTP on 0.0.0.0 port 8080', `GET / ${HOSTILE}`, '\u001b[33mwarning\u001b[0m: no model given'],
};

function deployment(number: number, name: string, part: Partial<Deployment> = {}): Deployment {
  const slug = `${name.toLowerCase().replace(/[^a-z]+/g, '-')}-k3v9q2xw`;
  return {
    id: id('dep', number),
    name,
    slug,
    url: `http://127.0.0.1:8091/d/${slug}`,
    api_url: 'http://127.0.0.1:8091',
    aliases: [],
    fallbacks: [],
    fallback_after_s: null,
    upstream: null,
    owner: SELF,
    state: 'running',
    reason: null,
    access_control: false,
    active_version: 1,
    target_version: null,
    min_replicas: 1,
    max_replicas: 1,
    ready_replicas: 1,
    idle_timeout_s: null,
    cold_start_wait_s: 60,
    strategy: 'auto',
    prefix_cache_scope: 'key',
    source_container_id: null,
    created_by: ME.id,
    created_at: at(10),
    updated_at: at(300),
    rev: 12,
    ...part,
  };
}

export const DEPLOYMENTS: Deployment[] = [
  deployment(1, 'Support assistant', {
    access_control: true,
    active_version: 3,
    source_container_id: id('con', 1),
    max_replicas: 2,
    ready_replicas: 2,
  }),
  deployment(2, 'Starting up', { state: 'pending', active_version: null, target_version: 1, ready_replicas: 0 }),
  deployment(3, 'Broken port', { state: 'failed', reason: REASON, ready_replicas: 0 }),
  deployment(4, '翻译服务', {
    state: 'scaled_to_zero',
    ready_replicas: 0,
    min_replicas: 0,
    idle_timeout_s: 900,
    owner: ACME,
  }),
  deployment(5, 'Rollout went wrong', {
    state: 'update_failed',
    target_version: 2,
    reason: { ...REASON, code: 'crash_loop', message: 'ended 5 times within 10 minutes', exit_code: 1 },
    owner: ACME,
  }),
  deployment(6, 'Night batch', { state: 'paused', ready_replicas: 0 }),
  deployment(7, HOSTILE.replace(/[\u001b\u202e].*/, ''), { state: 'updating', target_version: 2 }),
  deployment(8, 'Cloud provider', {
    access_control: true,
    active_version: null,
    ready_replicas: 0,
    upstream: {
      version: 2,
      url: 'https://api.example.com/v1',
      model: 'large',
      interfaces: ['chat', 'responses'],
      has_secret: true,
    },
  }),
];

export const UPSTREAM_VERSIONS: UpstreamVersion[] = [
  {
    version: 2,
    url: 'https://api.example.com/v1',
    model: 'large',
    interfaces: ['chat', 'responses'],
    has_secret: true,
    created_at: at(2),
    created_by: SELF.id,
  },
  {
    version: 1,
    url: 'https://eu.api.example.com/openai/v1',
    model: null,
    interfaces: ['chat'],
    has_secret: false,
    created_at: at(9),
    created_by: SELF.id,
  },
];

function version(deploymentNumber: number, number: number, part: Partial<Version> = {}): Version {
  return {
    id: id('ver', deploymentNumber * 100 + number),
    deployment_id: id('dep', deploymentNumber),
    number,
    state: 'running',
    is_active: true,
    reason: null,
    spec: SPEC,
    replicas: [
      {
        id: id('rep', deploymentNumber * 100 + number),
        ordinal: 0,
        state: 'ready',
        restarts: 0,
        started_at: at(12),
        gpu_uuids: [],
      },
    ],
    note: null,
    created_by: ME.id,
    created_by_name: ME.email,
    created_at: at(11),
    started_at: at(12),
    ready_at: at(13),
    ended_at: null,
    retry_at: null,
    ...part,
  };
}

const STOPPED: Partial<Version> = { state: 'stopped', is_active: false, replicas: [], ended_at: at(60) };
export const VERSIONS: Record<string, Version[]> = {
  [id('dep', 1)]: [
    version(1, 3, { note: 'Longer context, and a served name' }),
    version(1, 2, { ...STOPPED, note: 'Own server', spec: { ...SPEC, image_id: IMAGES[1].id, start_command: SCRIPT } }),
    version(1, 1, { ...STOPPED, state: 'error', reason: REASON }),
  ],
  [id('dep', 2)]: [version(2, 1, { state: 'starting', is_active: false, ready_at: null, replicas: [] })],
  [id('dep', 3)]: [version(3, 1, { state: 'error', reason: REASON, replicas: [] })],
  [id('dep', 5)]: [
    version(5, 2, { state: 'error', is_active: false, replicas: [], reason: { ...REASON, code: 'crash_loop' } }),
    version(5, 1),
  ],
  [id('dep', 7)]: [
    version(7, 2, { state: 'preparing', is_active: false, ready_at: null, replicas: [] }),
    version(7, 1),
  ],
};
for (const { id: deploymentId, upstream } of DEPLOYMENTS)
  VERSIONS[deploymentId] ??= upstream === null ? [version(Number(deploymentId.slice(4)), 1)] : [];

const CONTAINER_SPEC = {
  image_id: IMAGES[0].id,
  compute: COMPUTE,
  bindings: [
    {
      mount: 'home' as const,
      source_id: SOURCES[1].id,
      source_name: SOURCES[1].name,
      mode: 'rw' as const,
      source_digest: null,
    },
  ],
  env: { SEED: '42' },
};
export const CONTAINERS: Container[] = [
  {
    id: id('con', 1),
    name: 'Fine-tuning',
    owner: SELF,
    state: 'running',
    ...CONTAINER_SPEC,
    start_command: null,
    runtime: RUNTIME,
    url: 'http://127.0.0.1:41873',
    reason: null,
    created_at: at(4),
    updated_at: at(200),
    rev: 2,
  },
  {
    id: id('con', 2),
    name: 'Own server',
    owner: ACME,
    state: 'error',
    ...CONTAINER_SPEC,
    image_id: IMAGES[1].id,
    start_command: SCRIPT,
    runtime: RUNTIME,
    url: null,
    reason: 'the script ended with code 127',
    created_at: at(5),
    updated_at: at(100),
    rev: 4,
  },
];

function key(number: number, name: string, part: Partial<Key> = {}): Key {
  return {
    id: id('key', number),
    public_id: `0123456789A${number}`,
    name,
    type: 'user-level',
    owner: SELF,
    deployments: [],
    display: `sk-cap1_0123456789A${number}_…QkhZ`,
    state: 'active',
    expires_at: null,
    rotating_until: null,
    limits: { rpm: null, tpm: null, parallel: null },
    allowed_cidrs: null,
    budget: null,
    created_by: ME.id,
    created_at: at(20),
    updated_at: at(20),
    last_used_at: at(280),
    last_used_ip: '10.1.4.17',
    rev: 5,
    ...part,
  };
}

export const KEYS: Key[] = [
  key(1, 'Laptop'),
  key(2, 'Website', {
    type: 'deployment-level',
    deployments: [{ id: id('dep', 1), name: 'Support assistant' }],
    budget: { tokens: 2_000_000, period: 'month', used: 412_880, resets_at: at(14_000) },
    expires_at: at(90_000),
  }),
  key(3, 'Old CI', { state: 'disabled', last_used_at: null, last_used_ip: null }),
  key(4, 'Rotating', {
    state: 'rotating',
    rotating_until: at(2_000),
    limits: { rpm: 60, tpm: null, parallel: 4 },
    allowed_cidrs: ['10.0.0.0/8'],
  }),
];

export const ORGS: Organization[] = [
  {
    id: id('org', 1),
    slug: 'acme',
    name: 'Acme Research',
    role: 'owner',
    ...NO_QUOTAS,
    quota_gpu: 2,
    quota_deployments: 20,
    quota_memory_mb: 262_144,
    key_policy: { max_lifetime_s: 7_776_000, require_expiry: true, allowed_types: ['user-level', 'deployment-level'] },
    rev: 6,
  },
  {
    id: id('org', 2),
    slug: 'lab',
    name: '语言实验室',
    role: 'viewer',
    ...NO_QUOTAS,
    key_policy: null,
    rev: 1,
  },
];
export const QUOTAS: OwnerQuota[] = [
  {
    owner: { type: 'org', id: id('org', 1), name: 'acme' },
    ...NO_QUOTAS,
    ...NO_USE,
    quota_gpu: 2,
    quota_deployments: 20,
    quota_cpu_millis: 32_000,
    quota_memory_mb: 262_144,
    used_gpu: 1,
    used_deployments: 4,
    used_versions: 11,
    used_cpu_millis: 2_500,
    used_memory_mb: 4_096,
    used_disk_mb: 51_300,
    is_admin: false,
    rev: 6,
  },
  {
    owner: { type: 'user', id: ME.id, name: ME.email },
    ...NO_QUOTAS,
    ...NO_USE,
    quota_deployments: 10,
    used_deployments: 2,
    is_admin: true,
    rev: ME.rev,
  },
  {
    owner: { type: 'user', id: id('usr', 2), name: 'grace@example.com' },
    ...NO_QUOTAS,
    ...NO_USE,
    is_admin: false,
    rev: 3,
  },
];
export const MEMBERS: Member[] = [
  { user_id: ME.id, email: ME.email, name: ME.name, role: 'owner' },
  { user_id: id('usr', 2), email: 'grace@example.com', name: 'Grace Hopper', role: 'admin' },
  { user_id: id('usr', 3), email: 'lin@example.com', name: '林晓', role: 'developer' },
];
export const INVITATIONS: Invitation[] = [
  { id: id('inv', 1), email: 'alan@example.com', role: 'developer', invited_by: ME.id, expires_at: at(10_000) },
];
export const SESSIONS: Session[] = [
  {
    id: 'a'.repeat(64),
    is_current: true,
    ip: '127.0.0.1',
    user_agent: 'Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0 Safari/537.36',
    created_at: at(0),
    last_seen_at: at(300),
  },
  {
    id: 'b'.repeat(64),
    is_current: false,
    ip: '10.1.4.17',
    user_agent: 'Mozilla/5.0 (iPhone; CPU iPhone OS 19_0) Version/19.0 Safari/604.1',
    created_at: at(-3_000),
    last_seen_at: at(-60),
  },
];
export const TOKENS: Token[] = [
  {
    id: id('tok', 1),
    name: 'CI',
    rights: 'write',
    display: 'mt-…4f2a',
    expires_at: null,
    last_used_at: at(250),
    last_used_ip: '10.1.4.20',
    created_at: at(30),
  },
];

export const WEBHOOKS: Webhook[] = [
  {
    id: id('whk', 1),
    url: 'https://hooks.example.com/capstan',
    events: ['deployment.*', 'version.error'],
    owner: SELF,
    state: 'active',
    reason: null,
    rotating_until: at(2_000),
    failing_since: at(200),
    waiting: 3,
    dropped: 1,
    created_at: at(20),
    updated_at: at(20),
    rev: 7,
  },
  {
    id: id('whk', 2),
    url: 'https://elsewhere.example.com/in',
    events: ['*'],
    owner: ACME,
    state: 'disabled',
    reason: `no message was delivered since 2026-01-01; last error: ${HOSTILE}`,
    rotating_until: null,
    failing_since: at(2),
    waiting: 0,
    dropped: 0,
    created_at: at(1),
    updated_at: at(40),
    rev: 9,
  },
];
export const DELIVERIES: WebhookDelivery[] = [
  {
    id: id('whd', 3),
    event: 'deployment.failed',
    event_seq: 11,
    state: 'failed',
    next_at: null,
    created_at: at(250),
    attempts: [{ at: at(250), duration_ms: 9, status: 404, error: 'status 404' }],
  },
  {
    id: id('whd', 2),
    event: 'deployment.running',
    event_seq: 12,
    state: 'pending',
    next_at: at(260),
    created_at: at(255),
    attempts: [{ at: at(255), duration_ms: 31, status: 500, error: 'status 500' }],
  },
  {
    id: id('whd', 1),
    event: 'webhook.test',
    event_seq: null,
    state: 'delivered',
    next_at: null,
    created_at: at(240),
    attempts: [{ at: at(240), duration_ms: 12, status: 204, error: null }],
  },
];

const NAMES: Record<string, string> = { [id('dep', 1)]: 'support', [id('key', 2)]: HOSTILE };
const CHANGES: [action: string, target: string, before: object | null, after: object | null, result: string][] = [
  ['deployment.access_control', id('dep', 1), { access_control: false }, { access_control: true }, 'ok'],
  ['key.created', id('key', 2), null, { name: 'Website', type: 'deployment-level' }, 'ok'],
  ['account.sign_in_failed', id('usr', 2), null, { failures: 4, since: at(200) }, 'denied'],
  ['member.role_changed', id('usr', 3), { role: 'viewer' }, { role: 'developer' }, 'ok'],
  ['key.deleted', id('key', 9), { name: HOSTILE }, null, 'denied'],
];
export const AUDIT: AuditEvent[] = CHANGES.map(
  ([action, target, before, after, result], i) =>
    ({
      seq: 40 - i,
      id: id('aud', i),
      at: at(290 - i * 7),
      actor:
        action === 'account.sign_in_failed'
          ? { type: 'system', id: 'sign-in', name: null }
          : { type: 'user', id: ME.id, name: ME.email },
      org_id: null,
      action,
      target: { type: action.split('.')[0], id: target, name: NAMES[target] ?? null },
      ip: '127.0.0.1',
      user_agent: i === 2 ? SESSIONS[1].user_agent : null,
      before,
      after,
      result,
    }) as AuditEvent,
);

export const CANARY: Canary = {
  version: 4,
  percent: 10,
  header: 'X-Canary: yes',
  keys: [id('key', 2)],
  state: 'running',
  reason: HOSTILE,
  stable: { requests: 1_811, errors: 3, first_token_ms: 84.2 },
  canary: { requests: 204, errors: 1, first_token_ms: null },
  started_at: at(10),
  decided_at: null,
};
export const PROVIDERS: IdentityProvider[] = [
  {
    id: id('idp', 1),
    name: 'Example Corporation',
    issuer: 'https://login.example.com/realms/main',
    client_id: 'capstan',
    has_client_secret: true,
    scopes: ['openid', 'profile', 'email', 'groups'],
    groups_claim: 'groups',
    mappings: [
      { group: 'ml-engineers', org: 'acme', role: 'developer' },
      { group: HOSTILE, org: 'lab', role: 'viewer' },
    ],
    authorization_params: { prompt: 'select_account' },
    email_domains: ['example.com'],
    requires_group: true,
    links_by_email: false,
    own_redirect_uri: false,
    recheck_s: 3_600,
    enabled: true,
    redirect_uri: 'https://console.example.com/sign-in/callback',
    users: 412,
    created_at: at(10),
    updated_at: at(20),
    rev: 12,
  },
  {
    id: id('idp', 2),
    name: HOSTILE,
    issuer: 'https://partner.example.org',
    client_id: 'public',
    has_client_secret: false,
    scopes: ['openid', 'email'],
    groups_claim: 'realm_access.roles',
    mappings: [],
    authorization_params: {},
    email_domains: [],
    requires_group: false,
    links_by_email: true,
    own_redirect_uri: true,
    recheck_s: 900,
    enabled: false,
    redirect_uri: `https://console.example.com/sign-in/callback/${id('idp', 2)}`,
    users: 0,
    created_at: at(30),
    updated_at: at(30),
    rev: 13,
  },
];

export const EVENTS: DeploymentEvent[] = [
  'deployment.running',
  'deployment.updating',
  'deployment.access_control',
  'deployment.created',
].map((type, i) => ({ seq: 90 - i, at: at(280 - i * 30), type, target_id: id('dep', 1), data: {} }));

export const LINES: LogLine[] = Array.from({ length: 60 }, (_, i): LogLine => ({
  seq: i + 1,
  at: at(12 + i / 10),
  stream: i === 0 ? 'system' : i % 9 === 8 ? 'stderr' : 'stdout',
  level: i % 9 === 8 ? 'warn' : 'info',
  replica: 0,
  text:
    i === 0
      ? 'replica 0 started on L2'
      : i === 5
        ? HOSTILE
        : i % 9 === 8
          ? 'warning: prompt of 8120 tokens is close to the context length'
          : `{"level":30,"msg":"request completed","path":"/v1/chat/completions","status":200,"ms":${120 + i}}`,
}));

export function metrics(): Metrics {
  const times = Array.from({ length: 60 }, (_, i) => at(240 + i));
  const wave = (scale: number, base = 0) =>
    times.map((time, i): [string, number] => [
      time,
      Math.max(0, Math.round((base + scale * (1 + Math.sin(i / 7)) + ((i * 13) % 7)) * 10) / 10),
    ]);
  const names: [string, string, number, number][] = [
    ['requests', '', 22, 4],
    ['errors', '', 0, -5],
    ['latency_p50_ms', 'ms', 60, 220],
    ['latency_p90_ms', 'ms', 120, 420],
    ['latency_p99_ms', 'ms', 260, 900],
    ['first_byte_p50_ms', 'ms', 12, 40],
    ['first_byte_p90_ms', 'ms', 22, 70],
    ['first_byte_p99_ms', 'ms', 60, 120],
    ['prompt_tokens', '', 9_000, 1_000],
    ['completion_tokens', '', 4_000, 600],
    ['cached_tokens', '', 5_000, 0],
    ['cpu_percent', '%', 38, 12],
    ['memory_mb', 'MiB', 60, 1_900],
  ];
  return {
    from: times[0],
    to: times[59],
    step_s: 60,
    series: names.map(([name, unit, scale, base]) => ({ name, unit, points: wave(scale, base) })),
    tokens_counted: true,
    keys: [
      {
        key_id: id('key', 2),
        name: 'Website',
        display: 'sk-cap1_0123456789A2_…QkhZ',
        requests: 1_204,
        errors: 3,
        prompt_tokens: 380_112,
        completion_tokens: 98_450,
      },
    ],
  };
}
