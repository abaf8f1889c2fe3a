import { useState } from 'preact/hooks';
import type { Rotation } from '../../api/objects';
import { useAction } from '../api/resource';
import { t } from '../i18n';
import { Button } from '../ui/button';
import { Dialog } from '../ui/dialog';
import { SelectField } from '../ui/field';
import { ProblemBanner } from '../ui/state';

const GRACES = [0, 3_600, 86_400, 604_800, 2_592_000] as const;

/** Asks how long the old secret stays valid, then rotates. */
export function RotateDialog({
  title,
  text,
  rotate,
  onClose,
}: {
  title: string;
  text: string;
  rotate: (body: Rotation) => Promise<void>;
  onClose: () => void;
}) {
  const [grace, setGrace] = useState('86400');
  const action = useAction(() => rotate({ grace_s: Number(grace) }));
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={() => void action.run()}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button type="submit" look="primary" isBusy={action.isBusy}>
            {t('keys.rotate')}
          </Button>
        </>
      }
    >
      <p class="soft">{text}</p>
      <SelectField
        label={t('keys.grace')}
        hint={t('keys.graceHint')}
        value={grace}
        onChange={setGrace}
        options={GRACES.map((seconds) => ({ value: String(seconds), label: t(`keys.grace.${seconds}`) }))}
      />
      <ProblemBanner problem={action.problem} />
    </Dialog>
  );
}
