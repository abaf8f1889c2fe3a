import { t } from '../../i18n';
import { firstImage, useSpecChoices } from '../../spec/choices';
import { emptyDraft } from '../../spec/draft';
import { selfOwner } from '../../spec/owner-field';
import { Page } from '../../ui/page';
import { Loaded } from '../../ui/state';
import { CreateForm } from './create-form';

/** Creates a deployment. Only the name is required: the defaults run the embedded model. */
export function DeploymentNewPage() {
  const choices = useSpecChoices();
  return (
    <Page
      isNarrow
      title={t('deployments.new')}
      crumbs={[{ href: '/deployments', label: t('nav.deployments') }]}
      subtitle={t('deploy.manualText')}
    >
      <Loaded of={choices.images}>
        {(images) => (
          <CreateForm
            path="/deployments"
            start={emptyDraft(firstImage(images))}
            name=""
            owner={selfOwner()}
            choices={choices}
          />
        )}
      </Loaded>
    </Page>
  );
}
