import type { Key, KeyUsage } from '../../api/objects';
import { useResource } from '../api/resource';
import { formatNumber } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { Dialog } from '../ui/dialog';
import { Plot } from '../ui/plot';
import { Loaded } from '../ui/state';

/** The usage of a key by day. */
export function UsageDialog({ of, onClose }: { of: Key; onClose: () => void }) {
  const usage = useResource<KeyUsage>(`/keys/${of.id}/usage`);
  return (
    <Dialog title={t('keys.usageTitle', { name: neutralise(of.name) })} onClose={onClose} isWide>
      <Loaded of={usage}>
        {({ data }) => {
          const sum = (part: 'requests' | 'tokens') =>
            formatNumber(
              data.reduce((total, day) => total + day[part], 0),
              locale(),
            );
          return (
            <div class="stack">
              <dl class="columns">
                <div>
                  <dt class="faint">{t('metrics.requests')}</dt>
                  <dd class="numeric">{sum('requests')}</dd>
                </div>
                <div>
                  <dt class="faint">{t('metrics.tokens')}</dt>
                  <dd class="numeric">{sum('tokens')}</dd>
                </div>
              </dl>
              <Plot
                label={t('metrics.requests')}
                isBars
                series={[{ name: t('metrics.requests'), points: data.map(({ day, requests }) => [day, requests]) }]}
              />
            </div>
          );
        }}
      </Loaded>
    </Dialog>
  );
}
