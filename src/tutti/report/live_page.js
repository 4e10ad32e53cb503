'use strict';
(() => {
  const form = document.forms.view, live = document.getElementById('live'), grid = document.getElementById('cards');
  const runs = document.getElementById('runs');
  let source = null, have = grid.dataset.have, ended = false;

  const say = (text, lost) => { live.textContent = text; live.className = lost ? 'lost' : ''; };
  const query = () => new URLSearchParams(new FormData(form));

  // Ages of the moments of the page; the server writes moments, so that a card changes only with its run.
  const age = seconds => seconds < 60 ? Math.max(0, Math.round(seconds)) + ' s ago'
    : seconds < 3600 ? Math.round(seconds / 60) + ' min ago'
    : seconds < 172800 ? (seconds / 3600).toFixed(1) + ' h ago' : Math.round(seconds / 86400) + ' days ago';
  const ages = () => {
    for (const time of document.querySelectorAll('time')) {
      if (!time.title) time.title = time.textContent;
      time.textContent = age((Date.now() - Date.parse(time.dateTime)) / 1000);
    }
  };

  // What a reader has opened stays open.
  const put = (slot, html) => {
    const open = [...slot.querySelectorAll('details')].map(details => details.open);
    slot.innerHTML = html;
    slot.querySelectorAll('details').forEach((details, i) => { if (i < open.length) details.open = open[i]; });
  };
  const show = event => {
    const change = JSON.parse(event.data);
    have = event.lastEventId;
    for (const slot of [...grid.children])
      if (!change.order.includes(slot.id.slice(5))) slot.remove();
    change.order.filter(id => id !== 'runs').forEach((id, place) => {
      let slot = document.getElementById('card-' + id);
      if (!slot) {
        slot = document.createElement('div');
        slot.className = 'slot';
        slot.id = 'card-' + id;
      }
      if (grid.children[place] !== slot) grid.insertBefore(slot, grid.children[place] || null);
      if (id in change.cards) put(slot, change.cards[id]);
    });
    if ('runs' in change.cards) runs.innerHTML = change.cards.runs;
    ages();
  };

  const close = () => { if (source) source.close(); source = null; };
  // A browser keeps six connections to a server: pages that nobody sees hold none.
  const open = () => {
    close();
    if (ended || document.hidden) return;
    const asked = query();
    asked.set('have', have);
    source = new EventSource('events?' + asked);
    source.onopen = () => say('live', false);
    source.onerror = () => say('connection lost, trying again', true);
    source.addEventListener('cards', show);
    source.addEventListener('end', () => {
      ended = true;
      close();
      say('tutti watch has ended: this page stands still', true);
    });
  };
  document.addEventListener('visibilitychange', () => document.hidden ? close() : open());
  form.addEventListener('change', () => {
    have = '';
    history.replaceState(null, '', '?' + query());
    open();
  });
  setInterval(ages, 1000);
  ages();
  open();
})();
