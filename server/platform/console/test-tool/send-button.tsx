import { t } from '../i18n';
import { Button } from '../ui/button';

interface SendButtonProps {
  isRunning: boolean;
  isDisabled?: boolean;
  onCancel: () => void;
}

/** Submits the form, or cancels the request that runs. */
export function SendButton({ isRunning, isDisabled = false, onCancel }: SendButtonProps) {
  if (isRunning)
    return (
      <Button icon="stop" onClick={onCancel}>
        {t('test.cancel')}
      </Button>
    );
  return (
    <Button type="submit" look="primary" icon="send" isDisabled={isDisabled}>
      {t('test.send')}
    </Button>
  );
}
