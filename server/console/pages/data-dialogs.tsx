import { useState } from 'preact/hooks';
import type { DataSource, Image, OwnerReference } from '../../api/objects';
import { call } from '../api/client';
import { useAction } from '../api/resource';
import { neutralise } from '../format/neutral';
import { t } from '../i18n';
import { OwnerField, selfOwner } from '../spec/owner-field';
import { Button } from '../ui/button';
import { ConfirmDialog, Dialog } from '../ui/dialog';
import { Checkbox, SelectField, TextArea, TextField } from '../ui/field';
import { ProblemBanner } from '../ui/state';
import { toast } from '../ui/toast';

const TYPES = ['dataset', 'model', 'workspace', 'upload'] as const satisfies readonly DataSource['type'][];
const VISIBILITIES = ['private', 'org', 'public'] as const satisfies readonly DataSource['visibility'][];

interface DialogProps {
  onClose: () => void;
  onDone: () => void;
}

/** A folder of the machine below a data root becomes something that can be bound. */
export function SourceDialog({ onClose, onDone }: DialogProps) {
  const [name, setName] = useState('');
  const [path, setPath] = useState('');
  const [type, setType] = useState<DataSource['type']>('model');
  const [visibility, setVisibility] = useState<DataSource['visibility']>('private');
  const [owner, setOwner] = useState<OwnerReference>(selfOwner);
  const action = useAction(async () => {
    await call('POST', '/data-sources', { body: { name: name.trim(), path: path.trim(), type, visibility, owner } });
    onDone();
  });
  return (
    <Dialog title={t('data.addSource')} onClose={onClose} onSubmit={() => void action.run()} foot={<><Button onClick={onClose}>{t('action.cancel')}</Button><Button type="submit" look="primary" isBusy={action.isBusy} isDisabled={name.trim() === '' || path.trim() === ''}>{t('data.addSource')}</Button></>}>
      <ProblemBanner problem={action.problem} />
      <TextField label={t('keys.name')} maxLength={100} autoFocus value={name} onInput={setName} />
      <TextField label={t('data.path')} hint={t('data.pathHint')} isMono value={path} onInput={setPath} placeholder="/srv/capstan/data/qwen" />
      <div class="columns">
        <SelectField label={t('data.type')} value={type} onChange={(value) => setType(value as DataSource['type'])} options={TYPES.map((value) => ({ value, label: t(`data.type.${value}`) }))} />
        <SelectField label={t('data.visibility')} value={visibility} onChange={(value) => setVisibility(value as DataSource['visibility'])} options={VISIBILITIES.map((value) => ({ value, label: t(`data.visibility.${value}`) }))} />
      </div>
      <OwnerField value={owner} onChange={setOwner} />
    </Dialog>
  );
}

/** A name and a version for this machine's environment, with the script that it starts by default. */
export function ImageDialog({ onClose, onDone }: DialogProps) {
  const [name, setName] = useState('');
  const [version, setVersion] = useState('');
  const [start, setStart] = useState('');
  const [needsGpu, setNeedsGpu] = useState(false);
  const action = useAction(async () => {
    await call('POST', '/images', { body: { name: name.trim(), version: version.trim(), type: 'host-env', gpu_required: needsGpu, default_start: start.trim() === '' ? null : start } });
    onDone();
  });
  return (
    <Dialog title={t('data.addImage')} onClose={onClose} onSubmit={() => void action.run()} foot={<><Button onClick={onClose}>{t('action.cancel')}</Button><Button type="submit" look="primary" isBusy={action.isBusy} isDisabled={name.trim() === '' || version.trim() === ''}>{t('data.addImage')}</Button></>}>
      <p class="soft">{t('data.addImageText')}</p>
      <ProblemBanner problem={action.problem} />
      <div class="columns">
        <TextField label={t('keys.name')} maxLength={100} autoFocus value={name} onInput={setName} />
        <TextField label={t('data.version')} maxLength={100} isMono value={version} onInput={setVersion} />
      </div>
      <TextArea label={t('spec.script')} isOptional isMono rows={5} value={start} onInput={setStart} />
      <Checkbox label={t('data.gpuRequired')} isChecked={needsGpu} onChange={setNeedsGpu} />
    </Dialog>
  );
}

export function RemoveDialog({ of, path, onClose, onDone }: DialogProps & { of: DataSource | Image; path: '/data-sources' | '/images' }) {
  const name = 'version' in of ? `${of.name} ${of.version}` : of.name;
  const action = useAction(async () => {
    await call('DELETE', `${path}/${of.id}`);
    toast(t('data.removed'));
    onDone();
  });
  return (
    <ConfirmDialog title={t('data.removeTitle')} confirm={t('action.delete')} isBusy={action.isBusy} problem={action.problem} onClose={onClose} onConfirm={() => void action.run()}>
      <p>{t(path === '/images' ? 'data.removeImageText' : 'data.removeText')} <strong class="isolate">{neutralise(name)}</strong></p>
    </ConfirmDialog>
  );
}
