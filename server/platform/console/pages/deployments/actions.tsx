import { useState } from 'preact/hooks';
import type { Deployment } from '../../../api/objects';
import { call } from '../../api/client';
import { useAction } from '../../api/resource';
import { commandsOf } from '../../format/states';
import { neutralise } from '../../format/neutral';
import { t } from '../../i18n';
import { navigate } from '../../router/location';
import { withQuery } from '../../router/match';
import { Button, LinkButton } from '../../ui/button';
import { ConfirmDialog } from '../../ui/dialog';
import { Menu } from '../../ui/menu';
import { toast } from '../../ui/toast';
import { describeProblem } from '../../api/describe';

type Command = 'start' | 'stop' | 'restart' | 'scale-to-zero';

/** The commands that the deployment accepts in its current state. */
export function DeploymentActions({
  of,
  onChange,
}: {
  of: Deployment;
  onChange: (deployment: Deployment | undefined) => void;
}) {
  const [asked, setAsked] = useState<'stop' | 'delete' | null>(null);
  const hasReplicas = of.upstream === null;
  const can = commandsOf(of.state);
  const command = useAction(async (name: Command) => {
    onChange(await call<Deployment | undefined>('POST', `/deployments/${of.id}/${name}`));
    setAsked(null);
    toast(t(`command.${name}.done`));
  });
  const remove = useAction(async () => {
    await call('DELETE', withQuery(`/deployments/${of.id}`, { confirm: of.name }), { ifMatch: of.rev });
    toast(t('deployments.deleting', { name: neutralise(of.name) }));
    navigate('/deployments');
  });
  // A failed command may mean that the state on the page is stale, so reload it.
  const runNow = (name: Command) =>
    void command.run(name).then((isDone) => {
      if (!isDone) onChange(undefined);
    });
  const quickProblem = asked === null ? command.problem : null;
  return (
    <>
      {quickProblem !== null && (
        <span class="field-error" role="alert">
          {Object.values(describeProblem(quickProblem))
            .filter((part) => part !== '')
            .join(' – ')}
        </span>
      )}
      {can.start && (
        <Button look="primary" icon="play" isBusy={command.isBusy} onClick={() => runNow('start')}>
          {t('command.start')}
        </Button>
      )}
      {can.wake && (
        <Button look="primary" icon="play" isBusy={command.isBusy} onClick={() => runNow('start')}>
          {t('command.wake')}
        </Button>
      )}
      {of.state !== 'deleting' && hasReplicas && (
        <LinkButton href={`/deployments/${of.id}/versions/new`} icon="plus">
          {t('versions.create')}
        </LinkButton>
      )}
      <Menu
        label={t('field.actions')}
        items={[
          hasReplicas &&
            can.restart && { label: t('command.restart'), icon: 'restart', onSelect: () => runNow('restart') },
          hasReplicas &&
            can.scaleToZero && {
              label: t('command.scale-to-zero'),
              icon: 'sleep',
              onSelect: () => runNow('scale-to-zero'),
            },
          can.stop && { label: t('command.stop'), icon: 'stop', onSelect: () => setAsked('stop') },
          'line',
          {
            label: t('action.delete'),
            icon: 'trash',
            isDanger: true,
            isDisabled: of.state === 'deleting',
            onSelect: () => setAsked('delete'),
          },
        ]}
      />
      {asked === 'stop' && (
        <ConfirmDialog
          isDanger={false}
          title={t('command.stopTitle')}
          confirm={t('command.stop')}
          isBusy={command.isBusy}
          problem={command.problem}
          onClose={() => {
            setAsked(null);
            command.clear();
          }}
          onConfirm={() => void command.run('stop')}
        >
          <p>{t('command.stopText')}</p>
        </ConfirmDialog>
      )}
      {asked === 'delete' && (
        <ConfirmDialog
          title={t('deployments.deleteTitle')}
          confirm={t('deployments.deleteConfirm')}
          name={neutralise(of.name)}
          isBusy={remove.isBusy}
          problem={remove.problem}
          onClose={() => {
            setAsked(null);
            remove.clear();
          }}
          onConfirm={() => void remove.run()}
        >
          <p>{t('deployments.deleteText')}</p>
        </ConfirmDialog>
      )}
    </>
  );
}
