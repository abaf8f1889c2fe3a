import { useState } from 'preact/hooks';
import type { Deployment, DeploymentEdit } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { call } from '../../api/client';
import { fieldMessage } from '../../api/problem';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { Button } from '../../ui/button';
import { Choices, TextArea, TextField } from '../../ui/field';
import { Card } from '../../ui/page';
import { Banner, ProblemBanner } from '../../ui/state';
import { toast } from '../../ui/toast';
import { isScale, scaleOf, toScale } from '../../format/scale';
import { ScaleFields } from './scale-fields';
import { StrategyChoices } from './strategy-choices';
import { UpstreamSettings } from './upstream-settings';

/** One name a line. */
function linesOf(text: string): string[] {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
}

function secondsText({ fallback_after_s: seconds }: Deployment): string {
  return seconds === null ? '' : String(seconds);
}

function isSeconds(text: string): boolean {
  return text.trim() === '' || (/^\d{1,4}$/.test(text.trim()) && Number(text) >= 1 && Number(text) <= 3_600);
}

function sameLines(text: string, lines: readonly string[]): boolean {
  return linesOf(text).join('\n') === lines.join('\n');
}

const SCOPES = ['key', 'deployment'] as const;

/**
 * Settings that need no new version. If the deployment changes meanwhile, the form keeps its input and saving reports
 * a conflict.
 */
export function SettingsTab({
  of,
  onChange,
  onReload,
}: {
  of: Deployment;
  onChange: (deployment: Deployment) => void;
  onReload: () => void;
}) {
  const [name, setName] = useState(of.name);
  const [aliases, setAliases] = useState(of.aliases.join('\n'));
  const [scale, setScale] = useState(() => scaleOf(of));
  const [fallbacks, setFallbacks] = useState(of.fallbacks.join('\n'));
  const [after, setAfter] = useState(secondsText(of));
  const [strategy, setStrategy] = useState(of.strategy);
  const [scope, setScope] = useState(of.prefix_cache_scope);
  const [rev, setRev] = useState(of.rev);
  const action = useAction(async () => {
    const body: DeploymentEdit = {
      ...(name.trim() === of.name ? {} : { name: name.trim() }),
      ...(sameLines(aliases, of.aliases) ? {} : { aliases: linesOf(aliases) }),
      ...(sameLines(fallbacks, of.fallbacks) ? {} : { fallbacks: linesOf(fallbacks) }),
      fallback_after_s: after.trim() === '' ? null : Number(after),
      // A deployment that forwards to an upstream has no replicas.
      ...(of.upstream === null ? { strategy, prefix_cache_scope: scope, ...toScale(scale) } : {}),
    };
    const next = await call<Deployment>('PATCH', `/deployments/${of.id}`, { body, ifMatch: rev });
    onChange(next);
    setRev(next.rev);
    toast(t('action.saved'));
  });
  const loadLatest = () => {
    setName(of.name);
    setAliases(of.aliases.join('\n'));
    setFallbacks(of.fallbacks.join('\n'));
    setAfter(secondsText(of));
    setScale(scaleOf(of));
    setStrategy(of.strategy);
    setScope(of.prefix_cache_scope);
    setRev(of.rev);
    action.clear();
    onReload();
  };
  if (!mayChange(of.owner)) return <Banner title={t('settings.readOnly')} />;
  const submit = (event: Event) => {
    event.preventDefault();
    if (name.trim() !== '' && isScale(scale) && isSeconds(after)) void action.run();
  };
  const form = (
    <form class="stack page-narrow" noValidate onSubmit={submit}>
      <Card title={t('settings.general')}>
        <div class="stack">
          <TextField
            label={t('keys.name')}
            maxLength={100}
            value={name}
            onInput={setName}
            error={name.trim() === '' ? t('spec.error.required') : fieldMessage(action.problem, '/name')}
          />
          <TextArea
            label={t('settings.aliases')}
            hint={t('settings.aliasesHint')}
            rows={3}
            value={aliases}
            onInput={setAliases}
            error={fieldMessage(action.problem, '/aliases')}
            isOptional
          />
        </div>
      </Card>
      {of.upstream === null && (
        <Card title={t('scale.title')} note={t('scale.note')}>
          <ScaleFields value={scale} onChange={setScale} />
        </Card>
      )}
      <Card title={t('settings.fallbacks')} note={t('settings.fallbacksNote')}>
        <div class="stack">
          <TextArea
            label={t('settings.fallbackNames')}
            hint={t('settings.fallbackNamesHint')}
            rows={3}
            value={fallbacks}
            onInput={setFallbacks}
            error={fieldMessage(action.problem, '/fallbacks')}
            isOptional
          />
          <TextField
            label={t('settings.fallbackAfter')}
            hint={t('settings.fallbackAfterHint')}
            unit={t('unit.seconds')}
            inputMode="numeric"
            value={after}
            onInput={setAfter}
            error={isSeconds(after) ? undefined : t('settings.fallbackAfterError')}
            isOptional
          />
        </div>
      </Card>
      {of.upstream === null && (
        <>
          <Card title={t('settings.updates')}>
            <StrategyChoices value={strategy} onChange={setStrategy} />
          </Card>
          <Card title={t('settings.cache')} note={t('settings.cacheNote')}>
            <Choices
              legend={t('settings.cacheScope')}
              value={scope}
              onChange={setScope}
              options={SCOPES.map((value) => ({
                value,
                label: t(`settings.cache.${value}`),
                hint: t(`settings.cache.${value}.hint`),
              }))}
            />
          </Card>
        </>
      )}
      <ProblemBanner problem={action.problem}>
        {action.problem?.status === 412 && (
          <div class="row">
            <Button isSmall onClick={loadLatest}>
              {t('action.reload')}
            </Button>
          </div>
        )}
      </ProblemBanner>
      <div class="form-foot">
        <Button type="submit" look="primary" isBusy={action.isBusy}>
          {t('action.save')}
        </Button>
      </div>
    </form>
  );
  if (of.upstream === null) return form;
  return (
    <div class="stack">
      <UpstreamSettings
        of={{ ...of, rev }}
        upstream={of.upstream}
        onChange={(next) => {
          setRev(next.rev);
          onChange(next);
        }}
      />
      {form}
    </div>
  );
}
