import { useState } from 'preact/hooks';
import type { Deployment, Version } from '../../../api/objects';
import type { PageList } from '../../api/resource';
import { modelName } from '../../format/snippets';
import { t } from '../../i18n';
import { Chat } from '../../test-tool/chat';
import { TestTool } from '../../test-tool/tool';
import { Segments } from '../../ui/field';
import { Banner, Skeleton } from '../../ui/state';

export function TestTab({ of, versions }: { of: Deployment; versions: PageList<Version> }) {
  const [view, setView] = useState<'chat' | 'tool'>('chat');
  if (versions.data === undefined && versions.problem === null) return <Skeleton />;
  const model = modelName(versions.data?.find(({ number }) => number === of.active_version)?.spec.runtime);
  const serves =
    of.state === 'running' ||
    of.state === 'degraded' ||
    of.state === 'updating' ||
    of.state === 'update_failed' ||
    of.state === 'scaled_to_zero';
  return (
    <div class="stack">
      <div class="row">
        <Segments
          label={t('deployment.test')}
          value={view}
          onChange={setView}
          options={[
            { value: 'chat', label: t('chat.title') },
            { value: 'tool', label: t('test.title') },
          ]}
        />
        <span class="hint">{t('test.through')}</span>
      </div>
      {!serves && (
        <Banner tone="warn" title={t('test.notServing')}>
          {t('test.notServingHint')}
        </Banner>
      )}
      {view === 'chat' ? <Chat of={of} model={model} /> : <TestTool of={of} model={model} />}
    </div>
  );
}
