import { useState } from 'preact/hooks';
import type { DataSource, Image } from '../../api/objects';
import { call } from '../api/client';
import { useAction } from '../api/resource';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { Button } from '../ui/button';
import { CodeField } from '../ui/code-field';
import { ConfirmDialog, Dialog } from '../ui/dialog';
import { Checkbox, TextField } from '../ui/field';
import { ProblemBanner } from '../ui/state';
import { toast } from '../ui/toast';

interface DialogProps {
  onClose: () => void;
  onDone: () => void;
}

/** Registers the environment of this machine as an image, with an optional default start script. */
export function ImageDialog({ onClose, onDone }: DialogProps) {
  const [name, setName] = useState('');
  const [version, setVersion] = useState('');
  const [start, setStart] = useState('');
  const [needsGpu, setNeedsGpu] = useState(false);
  const action = useAction(async () => {
    await call('POST', '/images', {
      body: {
        name: name.trim(),
        version: version.trim(),
        type: 'host-env',
        gpu_required: needsGpu,
        default_start: start.trim() === '' ? null : start,
      },
    });
    onDone();
  });
  return (
    <Dialog
      title={t('data.addImage')}
      onClose={onClose}
      onSubmit={() => void action.run()}
      foot={
        <>
          <Button onClick={onClose}>{t('action.cancel')}</Button>
          <Button
            type="submit"
            look="primary"
            isBusy={action.isBusy}
            isDisabled={name.trim() === '' || version.trim() === ''}
          >
            {t('data.addImage')}
          </Button>
        </>
      }
    >
      <p class="soft">{t('data.addImageText')}</p>
      <ProblemBanner problem={action.problem} />
      <div class="columns">
        <TextField label={t('keys.name')} maxLength={100} autoFocus value={name} onInput={setName} />
        <TextField label={t('data.version')} maxLength={100} isMono value={version} onInput={setVersion} />
      </div>
      <CodeField label={t('spec.script')} isOptional language="shell" rows={5} value={start} onInput={setStart} />
      <Checkbox label={t('data.gpuCheck')} isChecked={needsGpu} onChange={setNeedsGpu} />
    </Dialog>
  );
}

export function RemoveDialog({
  of,
  path,
  onClose,
  onDone,
}: DialogProps & { of: DataSource | Image; path: '/data-sources' | '/images' }) {
  const textOfSource = 'pull' in of && of.pull !== null ? 'data.removePulledText' : 'data.removeText';
  const name = 'version' in of ? `${of.name} ${of.version}` : of.name;
  const action = useAction(async () => {
    await call('DELETE', `${path}/${of.id}`);
    toast(t('data.removed'));
    onDone();
  });
  return (
    <ConfirmDialog
      title={t('data.removeTitle')}
      confirm={t('action.delete')}
      isBusy={action.isBusy}
      problem={action.problem}
      onClose={onClose}
      onConfirm={() => void action.run()}
    >
      <p>
        {t(path === '/images' ? 'data.removeImageText' : textOfSource)}{' '}
        <strong class="isolate">{neutralise(name)}</strong>
      </p>
    </ConfirmDialog>
  );
}
