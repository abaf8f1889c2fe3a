import type { BindingView, Compute, RuntimeOptions } from '../../api/objects';
import { HUB_NAMES } from '../format/hubs';
import { formatCores, formatMegabytes, formatNumber } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { CodeBlock } from '../ui/copy';
import { Facts } from '../ui/page';
import { mountPath } from './bindings';
import type { SpecSource } from './draft';

export function computeText({ cpu_millis, memory_mb, gpu_count, gpu_type }: Compute): string {
  const gpus = gpu_count === 0 ? [] : [`${gpu_count} × ${gpu_type ?? 'GPU'}`];
  return [
    t('spec.coresText', { cores: formatCores(cpu_millis, locale()) }),
    formatMegabytes(memory_mb, locale()),
    ...gpus,
  ].join(' · ');
}

export function BindingList({ of }: { of: readonly BindingView[] }) {
  if (of.length === 0) return <span class="faint">{t('spec.none')}</span>;
  return (
    <ul class="stack-small">
      {of.map(({ mount, source_name, mode }) => (
        <li key={mount}>
          <code>{mountPath(mount)}</code> ← <span class="isolate">{neutralise(source_name)}</span>{' '}
          <span class="tag">{t(`mode.${mode}`)}</span>
        </li>
      ))}
    </ul>
  );
}

/** A read-only view of a specification. */
export function SpecView({ spec, imageName }: { spec: SpecSource; imageName: string }) {
  const names = Object.keys(spec.env);
  return (
    <div class="stack">
      <Facts
        of={[
          [t('spec.compute'), computeText(spec.compute)],
          [t('spec.image'), <span class="isolate">{neutralise(imageName)}</span>],
          [t('spec.data'), <BindingList of={spec.bindings} />],
          [
            t('spec.env'),
            names.length === 0 ? (
              <span class="faint">{t('spec.none')}</span>
            ) : (
              <ul>
                {names.map((name) => (
                  <li key={name}>
                    <code>
                      {name}={spec.env[name] === null ? '••••••' : neutralise(spec.env[name])}
                    </code>
                  </li>
                ))}
              </ul>
            ),
          ],
          [t('spec.start'), t(spec.start_command === null ? 'spec.start.runtime' : 'spec.start.script')],
          ...(spec.start_command === null ? runtimeFacts(spec.runtime) : []),
          spec.health_path !== undefined && [t('spec.healthPath'), <code>{spec.health_path}</code>],
          spec.start_deadline_s !== undefined && [
            t('spec.startDeadline'),
            `${formatNumber(spec.start_deadline_s, locale())} ${t('unit.seconds')}`,
          ],
          spec.grace_s !== undefined && [
            t('spec.grace'),
            `${formatNumber(spec.grace_s, locale())} ${t('unit.seconds')}`,
          ],
        ]}
      />
      {spec.start_command !== null && (
        <CodeBlock isScrolled text={neutralise(spec.start_command)} label={t('spec.script')} />
      )}
    </div>
  );
}

function runtimeFacts(runtime: RuntimeOptions): (readonly [string, string])[] {
  const facts: [string, string | number | null][] = [
    [t('spec.model'), runtime.model],
    [t('spec.servedName'), runtime.served_name],
    [t('spec.hub'), runtime.hub === null ? null : HUB_NAMES[runtime.hub]],
    [t('spec.task'), runtime.task === null ? null : t(`spec.task.${runtime.task}`)],
    [t('spec.maxModelLen'), runtime.max_model_len],
    [t('spec.quantization'), runtime.quantization],
    [t('spec.dtype'), runtime.dtype],
    [t('spec.kvCacheDtype'), runtime.kv_cache_dtype],
    [
      t('spec.kvCacheMemory'),
      runtime.kv_cache_memory_mb === null ? null : formatMegabytes(runtime.kv_cache_memory_mb, locale()),
    ],
    [
      t('spec.prefixCacheDisk'),
      runtime.prefix_cache_disk_mb === null ? null : formatMegabytes(runtime.prefix_cache_disk_mb, locale()),
    ],
    [t('spec.maxNumSeqs'), runtime.max_num_seqs],
    [t('spec.maxNumBatchedTokens'), runtime.max_num_batched_tokens],
    [t('spec.gpuMemory'), runtime.gpu_memory_utilization],
    [t('spec.tensorParallel'), runtime.tensor_parallel_size],
    [t('spec.toolCallParser'), runtime.tool_call_parser],
    [t('spec.reasoningParser'), runtime.reasoning_parser],
    [t('spec.chatTemplate'), runtime.chat_template],
  ];
  return [
    ...facts.filter(([, value]) => value !== null).map(([name, value]) => [name, neutralise(String(value))] as const),
    [t('spec.prefixCaching'), t(runtime.prefix_caching ? 'field.on' : 'field.off')] as const,
  ];
}
