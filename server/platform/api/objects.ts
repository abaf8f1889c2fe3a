/**
 * Wire types of the management API. They validate requests and define the OpenAPI document and the types of the console
 * and the command line. Times are RFC 3339, lists are `{data, next}`, and absent values are `null`.
 */
import { LOG_LINE_LEVELS } from '../driver/logs/log-level';
import { DEPLOYMENT_STATES } from '../deployments/deployment-state';
import { CONTAINER_STATES } from '../deployments/container-state';
import { MAX_ALIASES, MAX_FALLBACKS } from '../deployments/routing-schema';
import { UPSTREAM_INTERFACES } from '../gateway/upstreams/interfaces';
import { MODEL_TASKS } from '../deployments/model-task';
import { ROLES } from '../accounts/roles';
import { ERROR_REASONS, VERSION_STATES } from '../deployments/version-state';
import { CanarySplit } from './canary-objects';
import { input, list, object, oneOf, orNull, pair, partial, record, type Static } from './json-schema';

export * from './canary-objects';
export * from './money-objects';
export * from './provider-objects';

const STRING = { type: 'string' } as const;
const INTEGER = { type: 'integer' } as const;
const NUMBER = { type: 'number' } as const;
const BOOLEAN = { type: 'boolean' } as const;
const Time = { type: 'string', format: 'date-time' } as const;
const Name = { type: 'string', minLength: 1, maxLength: 100 } as const;
const Rev = {
  type: 'integer',
  description: 'Current revision: the value of `ETag`, and of `If-Match` in a change',
} as const;

export const Owner = object({
  type: oneOf(['user', 'org']),
  id: STRING,
  name: { type: 'string', description: 'Email address of a user, or slug of an organization' },
});
/** Owner in a request. Default: the caller. */
export const OwnerReference = input({ type: oneOf(['user', 'org']), id: STRING }, 'type', 'id');

export const Compute = object({
  cpu_millis: { type: 'integer', minimum: 100, maximum: 1_024_000, default: 1_000 },
  memory_mb: { type: 'integer', minimum: 64, maximum: 67_108_864, default: 1_024 },
  gpu_count: { type: 'integer', minimum: 0, maximum: 64, default: 0 },
  gpu_type: orNull({ type: 'string', maxLength: 100 }),
});

/** The machine's resources and isolation. */
export const Capacity = object({
  driver: STRING,
  isolation: object({
    level: oneOf(['L2', 'L1', 'L0']),
    /** For users: what the isolation level means for start scripts, and why no better level is available. */
    reason: STRING,
    outgoing_network: {
      type: 'boolean',
      description: 'Whether deployments can reach other machines. They cannot when they have network namespaces',
    },
    allows_start_scripts: {
      type: 'boolean',
      description: 'Whether all users may deploy their own start scripts',
    },
  }),
  total: Compute,
  free: Compute,
  gpus: list(object({ uuid: STRING, type: STRING, memory_mb: INTEGER, free: BOOLEAN })),
});

export const MOUNTS = ['input0', 'input1', 'input2', 'input3', 'input4', 'home'] as const;
export const Binding = input({ mount: oneOf(MOUNTS), source_id: STRING }, 'mount', 'source_id');
export const BindingView = object({
  mount: oneOf(MOUNTS),
  source_id: STRING,
  source_name: STRING,
  mode: oneOf(['ro', 'rw', 'copy']),
  source_digest: orNull({ type: 'string', description: 'Digest of the source when it was bound, if known then' }),
});

export const Image = object({
  id: STRING,
  name: STRING,
  version: STRING,
  type: oneOf(['builtin-runtime', 'host-env']),
  gpu_required: BOOLEAN,
  default_start: orNull(STRING),
  owner: orNull(Owner),
  created_at: Time,
});
const SourceType = oneOf(['dataset', 'model', 'workspace', 'upload']);
const Visibility = oneOf(['private', 'org', 'public']);
const Description = orNull({ type: 'string', maxLength: 1_000 });
const Folder = {
  type: 'string',
  minLength: 1,
  maxLength: 4_096,
  description: 'A folder of the service’s machine, inside one of its data roots',
} as const;
export const HubKind = oneOf(['huggingface', 'modelscope']);
const HubModel = {
  type: 'string',
  minLength: 1,
  maxLength: 500,
  description: 'A name on the hub: `ORG/NAME[@revision][:quantization or file]`',
} as const;
const HubToken = orNull({
  type: 'string',
  minLength: 1,
  maxLength: 1_024,
  description:
    'Token for gated and private models. It is encrypted, kept for later pulls and never shown. null removes it',
});
/**
 * The model from the hub in a data source. `is_filled`: the folder holds a complete model. `note`: a warning, such as
 * that the model does not fit into the memory. `total_bytes` is null until the hub has listed the files.
 */
export const DataPull = object({
  hub: HubKind,
  model: STRING,
  state: oneOf(['pending', 'running', 'done', 'failed', 'cancelled']),
  is_filled: BOOLEAN,
  error: orNull(object({ code: STRING, message: STRING })),
  note: orNull(STRING),
  commit: orNull(STRING),
  format: orNull(STRING),
  quantization: orNull(STRING),
  done_bytes: INTEGER,
  total_bytes: orNull(INTEGER),
  bytes_per_second: orNull(INTEGER),
  has_token: BOOLEAN,
  requested_at: Time,
  ended_at: orNull(Time),
});
/** `size_bytes`, `file_count` and `digest` are from the last measurement, and null before the first. */
export const DataSource = object({
  id: STRING,
  name: Name,
  description: orNull(STRING),
  type: SourceType,
  owner: Owner,
  visibility: Visibility,
  path: orNull({ type: 'string', description: 'Shown to administrators only' }),
  size_bytes: orNull(INTEGER),
  file_count: orNull(INTEGER),
  digest: orNull({ type: 'string', description: '`sha256:…` over the names, sizes and contents of all files' }),
  measurement: object({
    state: oneOf(['pending', 'measured', 'failed', 'cancelled']),
    message: orNull(STRING),
    at: orNull(Time),
  }),
  pull: orNull(DataPull),
  created_at: Time,
  updated_at: Time,
  rev: Rev,
});
export const NewDataSource = input(
  {
    name: Name,
    description: Description,
    type: SourceType,
    path: Folder,
    owner: OwnerReference,
    visibility: Visibility,
  },
  'name',
  'type',
  'path',
);
export const NewDataPull = input(
  {
    name: Name,
    model: HubModel,
    hub: HubKind,
    token: HubToken,
    description: Description,
    owner: OwnerReference,
    visibility: Visibility,
  },
  'name',
  'model',
);
/** Omitted fields do not change. */
export const DataPullAgain = input({ model: HubModel, hub: HubKind, token: HubToken });
/** `source_id`: a data source whose token is used, unless `token` is given. The others: how the model will run. */
export const DataPullQuestion = input(
  {
    model: HubModel,
    hub: HubKind,
    token: HubToken,
    source_id: STRING,
    max_model_len: { type: 'integer', minimum: 1 },
    quantization: oneOf(['none', 'int8', 'int4']),
  },
  'model',
);
/**
 * What a pull would download, and whether the model fits into the memory of the machine (an estimate for the CPU).
 * `problem`: why this version cannot run it. `unchecked_files`: files without a hash at the hub, whose content is not
 * checked. `suggestion`: a quantization that would fit.
 */
export const DataPullPreview = object({
  repository: STRING,
  revision: STRING,
  commit: STRING,
  format: oneOf(['safetensors', 'gguf']),
  quantization: orNull(STRING),
  files: list(object({ path: STRING, size_bytes: INTEGER })),
  total_bytes: INTEGER,
  free_disk_bytes: orNull(INTEGER),
  unchecked_files: list(STRING),
  quantizations: list(object({ name: STRING, size_bytes: INTEGER, fits: orNull(BOOLEAN) })),
  problem: orNull(STRING),
  fit: orNull(
    object({
      weight_bytes: INTEGER,
      kv_cache_bytes: INTEGER,
      context_length: INTEGER,
      available_bytes: INTEGER,
      machine_bytes: INTEGER,
      verdict: oneOf(['fits', 'tight', 'too_large']),
      suggestion: orNull(object({ variant: orNull(STRING), quantization: orNull(oneOf(['int8', 'int4'])) })),
    }),
  ),
});
export const DataSourceEdit = input({ name: Name, description: Description, path: Folder, visibility: Visibility });
/** `used_by` lists bindings of the caller and their organizations. `used_by_others` counts the rest. */
export const DataSourceDetails = object({
  ...DataSource.properties,
  used_by: list(
    object({
      type: oneOf(['deployment', 'container']),
      id: STRING,
      name: STRING,
      version: orNull(INTEGER),
      mount: oneOf(MOUNTS),
    }),
  ),
  used_by_others: INTEGER,
});

const ENV_NAME = '^[A-Za-z_][A-Za-z0-9_]{0,127}$';
export const Env = record({ type: 'string', maxLength: 32_768 }, ENV_NAME);

const ParserName = { type: 'string', pattern: '^[a-z0-9_]{1,64}$' } as const;
/** Options of the built-in runtime. They have no effect on a start script. null: the default of `capstan serve`. */
export const RuntimeOptions = object({
  model: orNull({
    type: 'string',
    description:
      '`demo` is the embedded model. `ORG/NAME[@revision][:quantization or file]` is a model from the hub: the service downloads it into a data source. Otherwise a path below /platform, such as /platform/input/input0',
    maxLength: 1_000,
  }),
  hub: orNull(HubKind),
  served_name: orNull(Name),
  task: orNull({ ...oneOf(MODEL_TASKS), description: 'What the model does. Null: what its files say, else generate' }),
  max_model_len: orNull({ type: 'integer', minimum: 1 }),
  dtype: orNull(oneOf(['f32', 'f16', 'bf16'])),
  quantization: orNull({
    ...oneOf(['none', 'int8', 'int4']),
    description: 'How the weights are quantized at load',
  }),
  kv_cache_dtype: orNull({
    ...oneOf(['f32', 'f16', 'bf16', 'int8', 'fp8']),
    description: 'On the CPU not `fp8`, on a GPU only `fp8`',
  }),
  kv_cache_memory_mb: orNull({ type: 'integer', minimum: 1, maximum: 67_108_864 }),
  max_num_seqs: orNull({ type: 'integer', minimum: 1, maximum: 65_536 }),
  max_num_batched_tokens: orNull({ type: 'integer', minimum: 1, maximum: 16_777_216 }),
  gpu_memory_utilization: orNull({ type: 'number', exclusiveMinimum: 0, maximum: 1 }),
  tensor_parallel_size: orNull({ type: 'integer', minimum: 1, maximum: 64 }),
  chat_template: orNull({ type: 'string', maxLength: 65_536, description: 'The text of a Jinja template' }),
  tool_call_parser: orNull(ParserName),
  reasoning_parser: orNull(ParserName),
  prefix_caching: { type: 'boolean', default: true },
  prefix_cache_disk_mb: orNull({
    type: 'integer',
    minimum: 1,
    maximum: 67_108_864,
    description:
      'Limit of the prefix cache on the disk, in MiB. It is shared by the replicas of the deployment and survives them. It counts towards the disk quota. Deployments on the CPU only. Null: the cache is only in memory',
  }),
});

/** What a version runs. Immutable. `env` contains secret variables with the value `null`. */
export const VersionSpec = object({
  image_id: STRING,
  compute: Compute,
  bindings: list(BindingView),
  env: record(orNull(STRING)),
  start_command: orNull({ type: 'string', description: 'A shell script. Null: `capstan serve`' }),
  runtime: RuntimeOptions,
  health_path: STRING,
  start_deadline_s: INTEGER,
  grace_s: INTEGER,
});

/** Omitted fields have their default, or the value of the version or container that the spec is derived from. */
export const SpecInput = {
  image_id: STRING,
  compute: partial(Compute),
  bindings: list(Binding, { maxItems: MOUNTS.length }),
  env: Env,
  secret_env: Env,
  start_command: orNull({ type: 'string', minLength: 1, maxLength: 65_536 }),
  runtime: partial(RuntimeOptions),
  hub_token: HubToken,
  health_path: { type: 'string', pattern: '^/[!-~]*$', maxLength: 1_000, default: '/v1/models' },
  start_deadline_s: { type: 'integer', minimum: 1, maximum: 86_400, default: 1_200 },
  grace_s: { type: 'integer', minimum: 0, maximum: 3_600, default: 30 },
} as const;

export const ScaleInput = {
  min_replicas: { type: 'integer', minimum: 0, maximum: 64, default: 1 },
  max_replicas: { type: 'integer', minimum: 1, maximum: 64, default: 1 },
  idle_timeout_s: orNull({ type: 'integer', minimum: 1, maximum: 31_536_000 }),
  cold_start_wait_s: { type: 'integer', minimum: 0, maximum: 3_600, default: 60 },
} as const;
const Strategy = oneOf(['auto', 'surge', 'replace']);
const CacheScope = oneOf(['key', 'deployment']);

/** Names that the API of all deployments accepts as `model`. */
const Aliases = {
  type: 'array',
  items: Name,
  maxItems: MAX_ALIASES,
  description: 'Further names that requests to api_url may give as model. Unique among the deployments of the owner',
} as const;
const FallbackInput = {
  fallbacks: {
    type: 'array',
    items: Name,
    maxItems: MAX_FALLBACKS,
    description:
      'Names or IDs of other deployments of the owner. They get, in this order, the inference requests that this one cannot serve',
  },
  fallback_after_s: orNull({
    type: 'integer',
    minimum: 1,
    maximum: 3_600,
    description: 'How long the first byte may take before the next fallback is tried. null: as without fallbacks',
  }),
} as const;
const UpstreamFields = {
  url: {
    type: 'string',
    minLength: 1,
    maxLength: 2_000,
    description: 'Base URL of an upstream server, such as https://api.example.com/v1. Without a path: /v1 is added',
  },
  secret: orNull({
    type: 'string',
    minLength: 1,
    maxLength: 1_000,
    description: 'The key that requests carry there. Encrypted, and never shown. null: none',
  }),
  model: orNull({
    type: 'string',
    minLength: 1,
    maxLength: 200,
    description: 'The only model that requests get there. null: the model that the request names',
  }),
  interfaces: {
    type: 'array',
    items: oneOf(UPSTREAM_INTERFACES),
    maxItems: UPSTREAM_INTERFACES.length,
    description:
      'What the server has: chat (chat completions), responses, messages. chat or messages is needed. Requests to the others are converted. Default: chat',
  },
} as const;
const UpstreamView = {
  version: INTEGER,
  url: STRING,
  model: orNull(STRING),
  interfaces: list(oneOf(UPSTREAM_INTERFACES)),
  has_secret: BOOLEAN,
} as const;
export const UpstreamVersion = object({ ...UpstreamView, created_at: Time, created_by: STRING });
export const NewDeployment = input(
  {
    name: Name,
    aliases: Aliases,
    ...FallbackInput,
    upstream: input(UpstreamFields, 'url'),
    owner: OwnerReference,
    access_control: { type: 'boolean', default: false },
    strategy: Strategy,
    prefix_cache_scope: CacheScope,
    note: { type: 'string', maxLength: 1_000 },
    ...ScaleInput,
    ...SpecInput,
  },
  'name',
);
export const NewVersion = input({
  note: { type: 'string', maxLength: 1_000 },
  strategy: Strategy,
  canary: CanarySplit,
  ...SpecInput,
});
export const DeploymentEdit = input({
  name: Name,
  aliases: Aliases,
  ...FallbackInput,
  upstream: input({
    ...UpstreamFields,
    version: { type: 'integer', minimum: 1, description: 'Restores an earlier version. Excludes the other fields' },
  }),
  strategy: Strategy,
  prefix_cache_scope: CacheScope,
  ...ScaleInput,
});

export const Reason = object({
  code: oneOf(ERROR_REASONS),
  message: STRING,
  exit_code: orNull(INTEGER),
  last_lines: list({ type: 'string', description: 'The end of the log, up to 200 lines' }),
});
export const Replica = object({
  id: STRING,
  ordinal: INTEGER,
  state: STRING,
  restarts: INTEGER,
  started_at: orNull(Time),
  gpu_uuids: list(STRING),
});

export const Version = object({
  id: STRING,
  deployment_id: STRING,
  number: INTEGER,
  state: oneOf(VERSION_STATES),
  is_active: BOOLEAN,
  reason: orNull(Reason),
  spec: VersionSpec,
  replicas: list(Replica),
  note: orNull(STRING),
  created_by: orNull(STRING),
  created_by_name: orNull({
    type: 'string',
    description: 'Email address of the creator. Null if the account was deleted',
  }),
  created_at: Time,
  started_at: orNull(Time),
  ready_at: orNull(Time),
  ended_at: orNull(Time),
  retry_at: orNull(Time),
});

export const Deployment = object({
  id: STRING,
  name: Name,
  slug: STRING,
  url: { type: 'string', description: 'Absolute, without a trailing slash and without /v1' },
  api_url: {
    type: 'string',
    description:
      'The URL of the API over all deployments of a key owner, which choose by model. Absolute, without a trailing slash and without /v1',
  },
  aliases: list({ type: 'string', description: 'Further names that requests to api_url may give as model' }),
  fallbacks: list({ type: 'string', description: 'Name of a deployment that gets what this one cannot serve' }),
  fallback_after_s: orNull(INTEGER),
  upstream: orNull(object(UpstreamView)),
  owner: Owner,
  state: oneOf(DEPLOYMENT_STATES),
  reason: orNull(Reason),
  access_control: BOOLEAN,
  active_version: orNull(INTEGER),
  target_version: orNull(INTEGER),
  min_replicas: INTEGER,
  max_replicas: INTEGER,
  ready_replicas: INTEGER,
  idle_timeout_s: orNull(INTEGER),
  cold_start_wait_s: INTEGER,
  strategy: Strategy,
  prefix_cache_scope: CacheScope,
  source_container_id: orNull(STRING),
  created_by: orNull(STRING),
  created_at: Time,
  updated_at: Time,
  rev: Rev,
});

export const Container = object({
  id: STRING,
  name: Name,
  owner: Owner,
  state: oneOf(CONTAINER_STATES),
  image_id: STRING,
  compute: Compute,
  bindings: list(BindingView),
  env: record(orNull(STRING)),
  start_command: orNull(STRING),
  runtime: RuntimeOptions,
  url: orNull({
    type: 'string',
    description: 'URL of port 8080 while the container runs. Open to user-level keys of its owner. No trailing slash',
  }),
  reason: orNull(STRING),
  created_at: Time,
  updated_at: Time,
  rev: Rev,
});
const ContainerFields = {
  image_id: SpecInput.image_id,
  compute: SpecInput.compute,
  bindings: SpecInput.bindings,
  env: SpecInput.env,
  secret_env: SpecInput.secret_env,
  start_command: SpecInput.start_command,
  runtime: SpecInput.runtime,
} as const;
export const NewContainer = input({ name: Name, owner: OwnerReference, ...ContainerFields }, 'name');
export const ContainerEdit = input({ name: Name, ...ContainerFields });
/** What a one-click deploy would create. Confirm it unchanged, or with changes. */
export const DeployPreview = object({ name: Name, owner: Owner, spec: VersionSpec, warnings: list(STRING) });
export const DeployContainer = NewDeployment;

/** How many gateways have applied a change of keys or access control. */
export const Propagation = object({
  rev: INTEGER,
  applied: INTEGER,
  total: INTEGER,
  max_lag_ms: INTEGER,
  ceiling_s: INTEGER,
});

const Email = { type: 'string', maxLength: 254, description: 'an address such as you@example.com' } as const;
const Password = { type: 'string', maxLength: 256, description: '10 to 256 characters' } as const;
const Otp = { type: 'string', pattern: '^[0-9]{6}$', description: 'the six digits of the authenticator' } as const;
const Role = oneOf(ROLES);
const Locale = oneOf(['en', 'zh-CN']);
const Theme = oneOf(['light', 'dark', 'system']);

const LoginOtp = {
  type: 'string',
  maxLength: 40,
  description: 'the six digits of the authenticator, or a recovery code',
} as const;
export const Login = input({ email: Email, password: Password, otp: LoginOtp }, 'email', 'password');
/** Redeems the setup link of the first start. Creates the first administrator and signs in. */
export const Bootstrap = input(
  { token: { type: 'string', maxLength: 200 }, email: Email, name: Name, password: Password },
  'token',
  'email',
  'name',
  'password',
);
export const PasswordChange = input({ current: Password, password: Password }, 'current', 'password');
const Quota = orNull({ type: 'integer', minimum: 0, maximum: 1_000_000_000, description: 'null: no limit' });
const QUOTAS = {
  quota_deployments: Quota,
  quota_versions: Quota,
  quota_gpu: Quota,
  quota_cpu_millis: Quota,
  quota_memory_mb: Quota,
  quota_disk_mb: Quota,
} as const;
export const Me = object({
  id: STRING,
  email: STRING,
  name: Name,
  locale: Locale,
  theme: Theme,
  is_admin: BOOLEAN,
  has_password: { type: 'boolean', description: 'False for an account that signs in with an identity provider alone' },
  has_totp: BOOLEAN,
  recovery_codes_left: INTEGER,
  ...QUOTAS,
  organizations: list(object({ id: STRING, slug: STRING, name: Name, role: Role })),
  via: oneOf(['session', 'token']),
  session_guard: {
    ...oneOf(['own-host', 'secret']),
    description:
      'What keeps other ports of the host from using console cookies: its own host name, or X-Session-Secret',
  },
  csrf_token: orNull({
    type: 'string',
    description: 'CSRF token of the session. Each changing request carries it as `X-CSRF-Token`',
  }),
  rev: Rev,
});
export const MeEdit = input({ name: Name, locale: Locale, theme: Theme });
export const EmailChange = input({ email: Email, password: Password }, 'email', 'password');
/** Confirms a sensitive change with the password. */
/** A link that sets a new password once. The console opens it at `/reset#TOKEN`. */
export const MadePasswordReset = object({ email: STRING, expires_at: Time, token: orNull(STRING) });
export const PasswordReset = input(
  { token: { type: 'string', maxLength: 200 }, password: Password },
  'token',
  'password',
);
export const PasswordProof = input({ password: Password }, 'password');
/** A second factor. Not in force until it is confirmed. */
export const TotpSecret = object({
  secret: { type: 'string', description: 'Base32' },
  url: { type: 'string', description: '`otpauth://…`, for a QR code' },
});
export const TotpConfirm = input({ otp: Otp }, 'otp');
/** Each works once in place of a code of the authenticator. */
export const RecoveryCodes = object({ recovery_codes: orNull(list(STRING)) });

export const Session = object({
  id: STRING,
  is_current: BOOLEAN,
  ip: orNull(STRING),
  user_agent: orNull(STRING),
  created_at: Time,
  last_seen_at: Time,
});

export const Token = object({
  id: STRING,
  name: Name,
  rights: oneOf(['read', 'write']),
  display: STRING,
  expires_at: orNull(Time),
  last_used_at: orNull(Time),
  last_used_ip: orNull(STRING),
  created_at: Time,
});
export const NewToken = input(
  { name: Name, rights: oneOf(['read', 'write']), expires_at: orNull(Time) },
  'name',
  'rights',
);
/** `token` is shown once, and null when an idempotent request is repeated. */
export const MadeToken = object({ ...Token.properties, token: orNull(STRING) });

const KEY_TYPE = oneOf(['user-level', 'deployment-level']);
const Limit = orNull({ type: 'integer', minimum: 1, maximum: 2_147_483_647 });
const PERIOD = oneOf(['day', 'week', 'month', 'total']);

export const KeyPolicy = input(
  {
    max_lifetime_s: orNull({ type: 'integer', minimum: 1, maximum: 3_153_600_000 }),
    require_expiry: BOOLEAN,
    allowed_types: list(KEY_TYPE, { minItems: 1, maxItems: 2 }),
  },
  'max_lifetime_s',
  'require_expiry',
  'allowed_types',
);
export const Organization = object({
  id: STRING,
  slug: STRING,
  name: Name,
  role: { ...Role, description: 'Role of the caller' },
  ...QUOTAS,
  key_policy: orNull(KeyPolicy),
  rev: Rev,
});
const Slug = {
  type: 'string',
  pattern: '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$',
  description: '1 to 63 lowercase letters, digits and hyphens, without a hyphen at either end',
} as const;
export const NewOrganization = input({ name: Name, slug: Slug }, 'name', 'slug');
export const OrganizationEdit = input({ name: Name, key_policy: orNull(KeyPolicy) });
/** Quotas and usage of an owner. Null: no limit. */
export const OwnerQuota = object({
  owner: Owner,
  ...QUOTAS,
  used_deployments: INTEGER,
  used_versions: INTEGER,
  used_gpu: INTEGER,
  used_cpu_millis: INTEGER,
  used_memory_mb: INTEGER,
  used_disk_mb: {
    ...INTEGER,
    description:
      'Measured size of the data sources and of the home folders that versions copied, and the limits of the prefix caches',
  },
  is_admin: { ...BOOLEAN, description: 'Whether the user is an administrator of the installation' },
  rev: Rev,
});
export const QuotaEdit = input(QUOTAS);
export const Member = object({ user_id: STRING, email: STRING, name: Name, role: Role });
export const MemberEdit = input({ role: Role }, 'role');
export const Invitation = object({ id: STRING, email: STRING, role: Role, invited_by: STRING, expires_at: Time });
export const NewInvitation = input({ email: Email, role: Role }, 'email', 'role');
/** `token` is shown once. The invited user accepts with it. */
export const MadeInvitation = object({ ...Invitation.properties, token: orNull(STRING) });
/** What an invitation shows to the holder of its token. */
export const InvitationView = object({ organization: STRING, email: STRING, role: Role, has_account: BOOLEAN });
export const InvitationToken = input({ token: { type: 'string', maxLength: 200 } }, 'token');
/** A signed-in user sends only the token. Otherwise name and password create an account and sign in. */
export const AcceptInvitation = input(
  { token: { type: 'string', maxLength: 200 }, name: Name, password: Password },
  'token',
);

const Reference = object({ id: STRING, name: STRING });
export const Key = object({
  id: STRING,
  public_id: STRING,
  name: Name,
  type: KEY_TYPE,
  owner: Owner,
  deployments: list(Reference),
  display: STRING,
  state: oneOf(['active', 'rotating', 'disabled', 'expired', 'exhausted', 'deleted']),
  expires_at: orNull(Time),
  rotating_until: orNull(Time),
  limits: object({ rpm: orNull(INTEGER), tpm: orNull(INTEGER), parallel: orNull(INTEGER) }),
  allowed_cidrs: orNull(list(STRING)),
  budget: orNull(object({ tokens: INTEGER, period: PERIOD, used: INTEGER, resets_at: orNull(Time) })),
  created_by: orNull(STRING),
  created_at: Time,
  updated_at: Time,
  last_used_at: orNull(Time),
  last_used_ip: orNull(STRING),
  rev: Rev,
});
const KeyFields = {
  name: Name,
  type: KEY_TYPE,
  deployments: list(
    { type: 'string', pattern: '^dep_[0-9a-z]{26}$', description: 'the id of a deployment, `dep_…`' },
    { maxItems: 1_000 },
  ),
  expires_at: orNull(Time),
  limits: input({ rpm: Limit, tpm: Limit, parallel: Limit }),
  allowed_cidrs: orNull(list({ type: 'string', maxLength: 64 }, { minItems: 1, maxItems: 100 })),
  budget: orNull(
    input(
      { tokens: { type: 'integer', minimum: 1, maximum: 9_007_199_254_740_991 }, period: PERIOD },
      'tokens',
      'period',
    ),
  ),
} as const;
/** Default type: `deployment-level` if deployments are given or named by the request, else `user-level`. */
export const NewKey = input({ ...KeyFields, owner: OwnerReference }, 'name');
export const KeyEdit = input({ ...KeyFields, disabled: BOOLEAN });
export const ChangedKey = object({ ...Key.properties, propagation: Propagation });
/** `secret` is shown once, and null when an idempotent request is repeated. */
export const MadeKey = object({ ...ChangedKey.properties, secret: orNull(STRING) });
/** `grace_s`: how long the previous secret remains valid. */
export const Rotation = input({ grace_s: { type: 'integer', minimum: 0, maximum: 2_592_000, default: 0 } });
export const KeyUsage = object({
  data: list(object({ day: { type: 'string', format: 'date' }, requests: INTEGER, tokens: INTEGER })),
});
export const KeyText = input({ key: { type: 'string', maxLength: 256 } }, 'key');
/** What administrators see of a possibly leaked key. */
export const KeyInspection = object({ well_formed: BOOLEAN, public_id: orNull(STRING), key: orNull(Key) });

/** `reason` is null if a user disabled the webhook. */
export const Webhook = object({
  id: STRING,
  url: STRING,
  events: list(STRING),
  owner: Owner,
  state: oneOf(['active', 'disabled']),
  reason: orNull({ type: 'string', description: 'Why the service disabled the webhook. Null if a user did' }),
  rotating_until: orNull({
    ...Time,
    description: 'Until then messages are signed with the previous secret too',
  }),
  failing_since: orNull(Time),
  waiting: { type: 'integer', description: 'Messages not delivered yet' },
  dropped: { type: 'integer', description: 'Events dropped because too many messages were waiting' },
  created_at: Time,
  updated_at: Time,
  rev: Rev,
});
const WebhookUrl = {
  type: 'string',
  minLength: 1,
  maxLength: 2_000,
  description: 'a public http:// or https:// URL',
} as const;
const WebhookEvents = list(
  {
    type: 'string',
    pattern: '^(\\*|[a-z]+\\.(\\*|[a-z_]+))$',
    description: '`deployment.running`, `deployment.*` or `*`',
  },
  { minItems: 1, maxItems: 100 },
);
export const NewWebhook = input({ url: WebhookUrl, events: WebhookEvents, owner: OwnerReference }, 'url', 'events');
export const WebhookEdit = input({ url: WebhookUrl, events: WebhookEvents, enabled: BOOLEAN });
/** `secret` is shown once, and null when an idempotent request is repeated. */
export const MadeWebhook = object({ ...Webhook.properties, secret: orNull(STRING) });
export const WebhookDelivery = object({
  id: { type: 'string', description: '`webhook-id` of the message' },
  event: STRING,
  event_seq: orNull({ type: 'integer', description: 'Null for a test message' }),
  state: oneOf(['pending', 'delivered', 'failed']),
  next_at: orNull(Time),
  created_at: Time,
  attempts: list(object({ at: Time, duration_ms: INTEGER, status: orNull(INTEGER), error: orNull(STRING) })),
});

/** Null after deletion. */
const NameNow = orNull({ type: 'string', description: 'Current name. Null after deletion' });
export const AuditEvent = object({
  seq: INTEGER,
  id: STRING,
  at: Time,
  actor: object({ type: oneOf(['user', 'key', 'system']), id: STRING, name: NameNow }),
  org_id: orNull(STRING),
  action: STRING,
  target: object({ type: STRING, id: STRING, name: NameNow }),
  ip: orNull(STRING),
  user_agent: orNull(STRING),
  before: orNull({ type: 'object' }),
  after: orNull({ type: 'object' }),
  result: oneOf(['ok', 'denied', 'error']),
});

export const LogLine = object({
  seq: { type: 'integer', description: 'Number within the log. No gaps, except for expired lines' },
  at: Time,
  stream: oneOf(['stdout', 'stderr', 'system']),
  level: oneOf(LOG_LINE_LEVELS),
  replica: { type: 'integer', description: 'Ordinal of the replica' },
  text: STRING,
});
export const LogPage = object({
  data: list(LogLine),
  next: orNull(STRING),
  first_seq: orNull(INTEGER),
  last_seq: orNull(INTEGER),
});

export const DeploymentEvent = object({
  seq: INTEGER,
  at: Time,
  type: { type: 'string', description: 'For example `deployment.running`' },
  target_id: STRING,
  data: { type: 'object' },
});

const Point = pair(Time, orNull(NUMBER));
export const Series = object({ name: STRING, unit: STRING, points: list(Point) });
/**
 * Series per step: `requests`, `errors` (5xx), `client_errors` (4xx and disconnects), `prompt_tokens`,
 * `completion_tokens`, `cached_tokens`; `latency_…_ms` and `first_byte_…_ms` with `avg`, `max`, `p50`, `p75`, `p90`,
 * `p95`, `p99`; `cpu_percent` (of one core) and `memory_mb` of all replicas together. Null: nothing was measured.
 */
export const Metrics = object({
  from: Time,
  to: Time,
  step_s: INTEGER,
  series: list(Series),
  tokens_counted: { type: 'boolean', description: 'Whether the deployment reports its token usage' },
  keys: list(
    object({
      key_id: orNull({ type: 'string', description: 'Null: requests without a key' }),
      name: orNull(STRING),
      display: orNull(STRING),
      requests: INTEGER,
      errors: { type: 'integer', description: '4xx and 5xx' },
      prompt_tokens: INTEGER,
      completion_tokens: INTEGER,
    }),
    { description: 'The hundred keys with the most requests' },
  ),
});

const Header = pair({ type: 'string', minLength: 1, maxLength: 200 }, { type: 'string', maxLength: 16_384 });
export const TestRequest = input(
  {
    method: oneOf(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS']),
    path: { type: 'string', pattern: '^/[!-~]*$', maxLength: 4_096 },
    query: list(pair(STRING, STRING), { maxItems: 100 }),
    headers: list(Header, { maxItems: 100 }),
    body: orNull({ type: 'string', maxLength: 10_485_760 }),
    auth: {
      anyOf: [
        input({ type: { const: 'none' } }, 'type'),
        input({ type: { const: 'key' }, key: { type: 'string', maxLength: 256 } }, 'type', 'key'),
      ],
    },
  },
  'method',
  'path',
);
/**
 * Events of the test tool (`text/event-stream`): `{type:'head', status, headers:[[name,value]…], at_ms}` ·
 * `{type:'chunk', text, at_ms}` (`base64` instead of `text` if it is not UTF-8) ·
 * `{type:'end', at_ms, connect_ms, first_byte_ms, bytes, truncated}` · `{type:'error', code, message, at_ms}`.
 * `at_ms` counts from the start of the request.
 */
export const TestEvent = object({ type: oneOf(['head', 'chunk', 'end', 'error']), at_ms: NUMBER });

export const Problem = object({
  type: STRING,
  title: STRING,
  status: INTEGER,
  detail: STRING,
  code: STRING,
  errors: list(object({ pointer: STRING, message: STRING })),
  request_id: STRING,
});

export type Owner = Static<typeof Owner>;
export type OwnerReference = Static<typeof OwnerReference>;
export type Compute = Static<typeof Compute>;
export type Capacity = Static<typeof Capacity>;
export type Binding = Static<typeof Binding>;
export type BindingView = Static<typeof BindingView>;
export type Image = Static<typeof Image>;
export type DataSource = Static<typeof DataSource>;
export type DataPull = Static<typeof DataPull>;
export type DataPullPreview = Static<typeof DataPullPreview>;
export type DataSourceEdit = Static<typeof DataSourceEdit>;
export type DataSourceDetails = Static<typeof DataSourceDetails>;
export type RuntimeOptions = Static<typeof RuntimeOptions>;
export type VersionSpec = Static<typeof VersionSpec>;
export type NewDeployment = Static<typeof NewDeployment>;
export type NewVersion = Static<typeof NewVersion>;
export type DeploymentEdit = Static<typeof DeploymentEdit>;
export type Reason = Static<typeof Reason>;
export type Replica = Static<typeof Replica>;
export type Version = Static<typeof Version>;
export type Deployment = Static<typeof Deployment>;
export type Container = Static<typeof Container>;
export type NewContainer = Static<typeof NewContainer>;
export type ContainerEdit = Static<typeof ContainerEdit>;
export type DeployPreview = Static<typeof DeployPreview>;
export type Propagation = Static<typeof Propagation>;
export type LogLine = Static<typeof LogLine>;
export type LogPage = Static<typeof LogPage>;
export type UpstreamVersion = Static<typeof UpstreamVersion>;
export type DeploymentEvent = Static<typeof DeploymentEvent>;
export type Metrics = Static<typeof Metrics>;
export type TestRequest = Static<typeof TestRequest>;
export type Problem = Static<typeof Problem>;
export type Login = Static<typeof Login>;
export type Bootstrap = Static<typeof Bootstrap>;
export type PasswordChange = Static<typeof PasswordChange>;
export type MadePasswordReset = Static<typeof MadePasswordReset>;
export type Me = Static<typeof Me>;
export type MeEdit = Static<typeof MeEdit>;
export type TotpSecret = Static<typeof TotpSecret>;
export type RecoveryCodes = Static<typeof RecoveryCodes>;
export type TotpConfirm = Static<typeof TotpConfirm>;
export type Session = Static<typeof Session>;
export type Token = Static<typeof Token>;
export type NewToken = Static<typeof NewToken>;
export type MadeToken = Static<typeof MadeToken>;
export type KeyPolicy = Static<typeof KeyPolicy>;
export type Organization = Static<typeof Organization>;
export type OwnerQuota = Static<typeof OwnerQuota>;
export type NewOrganization = Static<typeof NewOrganization>;
export type OrganizationEdit = Static<typeof OrganizationEdit>;
export type Member = Static<typeof Member>;
export type MemberEdit = Static<typeof MemberEdit>;
export type Invitation = Static<typeof Invitation>;
export type NewInvitation = Static<typeof NewInvitation>;
export type MadeInvitation = Static<typeof MadeInvitation>;
export type InvitationView = Static<typeof InvitationView>;
export type InvitationToken = Static<typeof InvitationToken>;
export type AcceptInvitation = Static<typeof AcceptInvitation>;
export type Key = Static<typeof Key>;
export type NewKey = Static<typeof NewKey>;
export type KeyEdit = Static<typeof KeyEdit>;
export type ChangedKey = Static<typeof ChangedKey>;
export type MadeKey = Static<typeof MadeKey>;
export type Rotation = Static<typeof Rotation>;
export type KeyUsage = Static<typeof KeyUsage>;
export type KeyText = Static<typeof KeyText>;
export type KeyInspection = Static<typeof KeyInspection>;
export type Webhook = Static<typeof Webhook>;
export type NewWebhook = Static<typeof NewWebhook>;
export type WebhookEdit = Static<typeof WebhookEdit>;
export type MadeWebhook = Static<typeof MadeWebhook>;
export type WebhookDelivery = Static<typeof WebhookDelivery>;
export type AuditEvent = Static<typeof AuditEvent>;
