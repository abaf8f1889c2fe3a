import type { Container } from '../../../api/objects';
import { useResource } from '../../api/resource';
import { t } from '../../i18n';
import { useSpecChoices } from '../../spec/choices';
import { draftOf } from '../../spec/draft';
import { Page } from '../../ui/page';
import { Loaded } from '../../ui/state';
import { ContainerForm } from './container-form';

export function ContainerEditPage({ id }: { id: string }) {
  const container = useResource<Container>(`/containers/${id}`);
  const choices = useSpecChoices();
  return (
    <Page
      isNarrow
      title={t('containers.edit')}
      crumbs={[
        { href: '/containers', label: t('nav.containers') },
        { href: `/containers/${id}`, label: container.data?.name ?? '…' },
      ]}
      subtitle={t('containers.editText')}
    >
      <Loaded of={container}>
        {(data) => (
          <ContainerForm
            key={data.rev}
            edited={data}
            start={draftOf(data)}
            choices={choices}
            onReload={container.reload}
          />
        )}
      </Loaded>
    </Page>
  );
}
