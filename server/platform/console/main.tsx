import { render } from 'preact';
import { App } from './app/app';
import { loadSession } from './app/session';
import { preferredLocale, setLocale } from './i18n';
import { followLinks } from './router/location';
import './styles/index.css';

followLinks();
await setLocale(preferredLocale());
render(<App />, document.getElementById('app') as HTMLElement);
void loadSession();
