import type { Container, DeployPreview } from '../../../api/objects';
import { useResource } from '../../api/resource';
import { neutralise } from '../../format/neutral';
import { lookUp, t } from '../../i18n';
import { useSpecChoices } from '../../spec/choices';
import { draftOf } from '../../spec/draft';
import { Page } from '../../ui/page';
import { Loaded } from '../../ui/state';
import { CreateForm } from '../deployments/create-form';

/** Deploys a container. The form is filled in with the specification of the container. */
export function ContainerDeployPage({ id }: { id: string }) {
  const container = useResource<Container>(`/containers/${id}`);
  const preview = useResource<DeployPreview>(`/containers/${id}/deploy-preview`);
  const choices = useSpecChoices();
  return (
    <Page
      isNarrow
      title={t('deploy.oneClick')}
      crumbs={[
        { href: '/containers', label: t('nav.containers') },
        { href: `/containers/${id}`, label: container.data?.name ?? '…' },
      ]}
      subtitle={t('deploy.inherited')}
    >
      <Loaded of={preview}>
        {({ name, owner, spec, warnings }) => (
          <CreateForm
            path={`/containers/${id}/deploy`}
            isInherited
            start={draftOf(spec)}
            name={name}
            owner={{ type: owner.type, id: owner.id }}
            choices={choices}
            warnings={warnings.map((code) => lookUp(`deploy.warning.${code}`) ?? neutralise(code))}
          />
        )}
      </Loaded>
    </Page>
  );
}
