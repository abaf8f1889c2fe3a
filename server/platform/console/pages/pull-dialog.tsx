import { useState } from 'preact/hooks';
import type { DataPullPreview, DataSource, OwnerReference } from '../../api/objects';
import { call } from '../api/client';
import { fieldMessage } from '../api/problem';
import { useAction } from '../api/resource';
import { HUB_NAMES } from '../format/hubs';
import { formatBytes, formatNumber } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { OwnerField, selfOwner } from '../spec/owner-field';
import { Button } from '../ui/button';
import { Dialog } from '../ui/dialog';
import { SelectField, TextField } from '../ui/field';
import { Banner, ProblemBanner } from '../ui/state';
import { toast } from '../ui/toast';

const VISIBILITIES = ['private', 'org', 'public'] as const satisfies readonly DataSource['visibility'][];
const HUBS = ['huggingface', 'modelscope'] as const;

/** The parts of a name on the hub. */
interface Name {
  repository: string;
  revision: string;
  variant: string;
}

/** Splits `ORG/NAME[@revision][:quantization or file]`. */
function splitName(model: string): Name {
  const [, repository = model, revision = '', variant = ''] =
    /^(?:hf:)?([^@:]*)(?:@([^:]*))?(?::(.*))?$/.exec(model.trim()) ?? [];
  return { repository, revision, variant };
}

function joinName({ repository, revision, variant }: Name): string {
  const part = (mark: string, text: string) => (text.trim() === '' ? '' : `${mark}${text.trim()}`);
  return `${repository.trim()}${part('@', revision)}${part(':', variant)}`;
}

/** Downloads a model from the hub into a new data source, or again into the one that a pull has made. */
export function PullDialog({
  source,
  onClose,
  onDone,
}: {
  source?: DataSource;
  onClose: () => void;
  onDone: () => void;
}) {
  const pull = source?.pull ?? null;
  const [name, setName] = useState<Name>(splitName(pull?.model ?? ''));
  const [hub, setHub] = useState<(typeof HUBS)[number]>(pull?.hub ?? 'huggingface');
  const [token, setToken] = useState('');
  const [title, setTitle] = useState('');
  const [visibility, setVisibility] = useState<DataSource['visibility']>('private');
  const [owner, setOwner] = useState<OwnerReference>(selfOwner);
  const [preview, setPreview] = useState<DataPullPreview | null>(null);
  const model = joinName(name);
  const request = { model, hub, ...(token.trim() === '' ? {} : { token: token.trim() }) };
  const check = useAction(async () => {
    const body = { ...request, ...(source === undefined ? {} : { source_id: source.id }) };
    setPreview(await call<DataPullPreview>('POST', '/data-pulls/preview', { body }));
  });
  const start = useAction(async () => {
    if (source === undefined)
      await call('POST', '/data-pulls', {
        body: { ...request, name: title.trim() === '' ? model : title.trim(), visibility, owner },
      });
    else await call('POST', `/data-sources/${source.id}/pull`, { body: request });
    toast(t('data.pullStarted'));
    onDone();
  });
  const set = (part: Partial<Name>) => {
    setName({ ...name, ...part });
    setPreview(null);
  };
  const problem = start.problem ?? check.problem;
  const isIncomplete = !/^[^/\s]+\/[^/\s]+$/.test(name.repository.trim());
  return (
    <Dialog
      title={t(source === undefined ? 'data.pull' : 'data.pullAgain')}
      isWide
      onClose={onClose}
      onSubmit={() => void start.run()}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button isBusy={check.isBusy} isDisabled={isIncomplete} onClick={() => void check.run()}>
            {t('data.check')}
          </Button>
          <Button type="submit" look="primary" icon="download" isBusy={start.isBusy} isDisabled={isIncomplete}>
            {t(source === undefined ? 'data.pull' : 'data.pullAgain')}
          </Button>
        </>
      }
    >
      {source === undefined && <p class="soft">{t('data.pullText')}</p>}
      <ProblemBanner problem={problem} />
      <div class="columns">
        <TextField
          label={t('data.model')}
          hint={t('data.modelHint')}
          isMono
          autoFocus
          maxLength={400}
          value={name.repository}
          onInput={(text) => set(/[@:]/.test(text) ? splitName(text) : { repository: text })}
          error={fieldMessage(problem, '/model')}
        />
        <SelectField
          label={t('spec.hub')}
          value={hub}
          onChange={(value) => setHub(value as (typeof HUBS)[number])}
          options={HUBS.map((value) => ({ value, label: HUB_NAMES[value] }))}
        />
      </div>
      <div class="columns">
        <TextField
          label={t('data.revision')}
          hint={t('data.revisionHint')}
          isOptional
          isMono
          value={name.revision}
          onInput={(revision) => set({ revision })}
        />
        <TextField
          label={t('data.variant')}
          hint={t('data.variantHint')}
          isOptional
          isMono
          value={name.variant}
          onInput={(variant) => set({ variant })}
        />
      </div>
      <TextField
        label={t('data.token')}
        hint={t(pull?.has_token === true ? 'data.tokenKept' : 'data.tokenHint')}
        isOptional
        type="password"
        autocomplete="new-password"
        maxLength={1_024}
        value={token}
        onInput={setToken}
        error={fieldMessage(problem, '/token')}
      />
      {preview !== null && <Preview of={preview} onVariant={(variant) => set({ variant })} />}
      {source === undefined && (
        <>
          <div class="columns">
            <TextField
              label={t('keys.name')}
              isOptional
              maxLength={100}
              placeholder={model}
              value={title}
              onInput={setTitle}
              error={fieldMessage(problem, '/name')}
            />
            <SelectField
              label={t('data.visibility')}
              value={visibility}
              onChange={(value) => setVisibility(value as DataSource['visibility'])}
              options={VISIBILITIES.map((value) => ({ value, label: t(`data.visibility.${value}`) }))}
            />
          </div>
          <OwnerField value={owner} onChange={setOwner} hint={t('data.ownerHint')} />
        </>
      )}
    </Dialog>
  );
}

/** What a pull would download, whether it fits, and the quantizations to choose from. */
function Preview({ of, onVariant }: { of: DataPullPreview; onVariant: (name: string) => void }) {
  const { fit, files, total_bytes: total, free_disk_bytes: free, format, quantization, quantizations } = of;
  const bytes = (value: number) => formatBytes(value, locale());
  const lacksDisk = free !== null && free < total;
  const tone = lacksDisk || of.problem !== null || fit?.verdict === 'too_large' ? 'bad' : 'warn';
  const isFine = !lacksDisk && of.problem === null && (fit === null || fit.verdict === 'fits');
  const suggestion = fit?.suggestion?.variant ?? fit?.suggestion?.quantization ?? null;
  return (
    <Banner tone={isFine ? 'ok' : tone} role="status" title={t(`data.fit.${fit?.verdict ?? 'unknown'}`)}>
      <p>
        {t('data.checkTotal', {
          files: t('data.fileCount', { n: files.length }),
          size: bytes(total),
          format: neutralise(quantization === null ? format : `${format}, ${quantization}`),
        })}
      </p>
      {fit !== null && (
        <p>
          {t(fit.kv_cache_bytes > 0 ? 'data.fit.memory' : 'data.fit.memoryWithoutCache', {
            weights: bytes(fit.weight_bytes),
            tokens: formatNumber(fit.context_length, locale()),
            cache: bytes(fit.kv_cache_bytes),
            free: bytes(fit.available_bytes),
            total: bytes(fit.machine_bytes),
          })}
        </p>
      )}
      {suggestion !== null && <p>{t('data.fit.suggestion', { name: neutralise(suggestion) })}</p>}
      {lacksDisk && <p>{t('data.fit.disk', { free: bytes(free) })}</p>}
      {of.problem !== null && (
        <p>
          {t('data.fit.problem')} <span class="isolate">{neutralise(of.problem)}</span>
        </p>
      )}
      {of.unchecked_files.length > 0 && <p>{t('data.fit.unchecked', { n: of.unchecked_files.length })}</p>}
      {quantizations.length > 1 && (
        <div class="stack-small">
          <span class="small soft">{t('data.variants')}</span>
          <div class="row-tight">
            {quantizations.map(({ name, size_bytes: size }) => (
              <Button key={name} isSmall onClick={() => onVariant(name)}>
                {neutralise(name)} · {bytes(size)}
              </Button>
            ))}
          </div>
        </div>
      )}
    </Banner>
  );
}
