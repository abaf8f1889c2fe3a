import { useState } from 'preact/hooks';
import type { Deployment, Propagation } from '../../../api/objects';
import { mayChange } from '../../app/rights';
import { call } from '../../api/client';
import { useAction } from '../../api/resource';
import { t } from '../../i18n';
import { KeysPanel } from '../../keys/keys-panel';
import { PropagationNote } from '../../keys/propagation';
import { Button } from '../../ui/button';
import { ConfirmDialog } from '../../ui/dialog';
import { Switch } from '../../ui/field';
import { Card } from '../../ui/page';
import { Banner, ProblemBanner } from '../../ui/state';

interface AccessResponse extends Deployment {
  propagation?: Propagation;
  warnings?: string[];
}

/** Access control and the keys of a deployment. Keys can be created while access control is on. */
export function AccessTab({
  of,
  onChange,
  onReload,
}: {
  of: Deployment;
  onChange: (deployment: Deployment) => void;
  onReload: () => void;
}) {
  const [isOpening, setOpening] = useState(false);
  const [response, setResponse] = useState<AccessResponse | null>(null);
  const isMine = mayChange(of.owner);
  const action = useAction(async (enabled: boolean) => {
    const next = await call<AccessResponse>('PUT', `/deployments/${of.id}/access-control`, {
      body: { enabled },
      ifMatch: of.rev,
    });
    setResponse(next);
    setOpening(false);
    const { propagation: _propagation, warnings: _warnings, ...deployment } = next;
    onChange({ ...of, ...deployment });
  });
  // Making a deployment public needs a confirmation. Requiring a key does not.
  const change = (isOn: boolean) => (isOn ? void action.run(true) : setOpening(true));
  return (
    <div class="stack">
      <Card
        title={t('access.title')}
        aside={response?.propagation !== undefined && <PropagationNote propagation={response.propagation} />}
      >
        <div class="stack">
          <Switch
            label={t('access.switch')}
            isOn={of.access_control}
            isDisabled={!isMine || action.isBusy}
            onChange={change}
          />
          <p class="soft">{t(of.access_control ? 'access.restrictedHint' : 'access.publicHint')}</p>
          {response?.warnings?.includes('no_key') === true && of.access_control && (
            <Banner tone="warn" title={t('access.noKey')}>
              {t('access.noKeyHint')}
            </Banner>
          )}
          {!isOpening && (
            <ProblemBanner problem={action.problem}>
              {action.problem?.status === 412 && (
                <div class="row">
                  <Button isSmall onClick={onReload}>
                    {t('action.reload')}
                  </Button>
                </div>
              )}
            </ProblemBanner>
          )}
        </div>
      </Card>
      {of.access_control ? (
        <KeysPanel
          scope={{
            type: 'deployment',
            ownerId: of.owner.id,
            ownerType: of.owner.type,
            deploymentId: of.id,
            deploymentName: of.name,
          }}
          note={t('keys.deploymentNote')}
          canCreate={isMine}
          onChange={() => setResponse(null)}
        />
      ) : (
        <Card title={t('keys.title')}>
          <p class="soft">{t('access.keysLater')}</p>
        </Card>
      )}
      {isOpening && (
        <ConfirmDialog
          title={t('access.openTitle')}
          confirm={t('access.openConfirm')}
          isBusy={action.isBusy}
          problem={action.problem}
          onClose={() => {
            setOpening(false);
            action.clear();
          }}
          onConfirm={() => void action.run(false)}
        >
          <p>{t('access.openText')}</p>
        </ConfirmDialog>
      )}
    </div>
  );
}
