import { t } from '../../i18n';
import { firstImage, useSpecChoices } from '../../spec/choices';
import { emptyDraft } from '../../spec/draft';
import { Page } from '../../ui/page';
import { Loaded } from '../../ui/state';
import { ContainerForm } from './container-form';

export function ContainerNewPage() {
  const choices = useSpecChoices();
  return (
    <Page
      isNarrow
      title={t('containers.new')}
      crumbs={[{ href: '/containers', label: t('nav.containers') }]}
      subtitle={t('containers.newText')}
    >
      <Loaded of={choices.images}>
        {(images) => <ContainerForm start={emptyDraft(firstImage(images))} choices={choices} />}
      </Loaded>
    </Page>
  );
}
