package resolved

import (
	"context"
	"slices"
)

// remove reverts the settings of a link that this process has set, or that an earlier one seems to have
// left. A host without systemd-resolved, or without the link, has none.
func (f *Follower) remove(ctx context.Context, off Settings) {
	if off.Link == "" {
		return
	}
	was := f.applied
	f.applied = Settings{}
	found, err := f.revert(ctx, off, was)
	switch {
	case found && err == nil:
		f.log.Info("systemd-resolved no longer uses this host's DNS server", "link", off.Link)
	case (found || was.On) && err != nil && ctx.Err() == nil:
		f.log.Warn("settings of systemd-resolved not reverted", "link", off.Link, "err", problemOf(err).Message, "fix", "run resolvectl revert "+off.Link)
	}
}

// revert reverts the settings of a link if they are like one of those, and reports whether they were.
func (f *Follower) revert(ctx context.Context, like ...Settings) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	index, err := f.links.Find(like[0].Link)
	if err != nil {
		return false, nil // systemd-resolved forgets the settings of a link that is removed
	}
	m, err := f.connect(ctx)
	if err != nil {
		return false, err
	}
	defer m.Close()
	has, err := m.Link(ctx, index)
	if err != nil || !slices.ContainsFunc(like, has.isLike) {
		return false, err
	}
	return true, m.Revert(ctx, index)
}

// isLike reports whether an agent has set this, with the same domain or one of the same servers as s.
// Somebody may have changed the other ones in the configuration since then.
func (x stored) isLike(s Settings) bool {
	if x.defaultRoute || x.dnssec != "no" || x.tls != "no" || slices.ContainsFunc(x.domains, func(d domain) bool { return !d.Routing }) {
		return false
	}
	return slices.ContainsFunc(x.domains, func(d domain) bool { return len(s.Domains) > 0 && d.Name == s.Domains[0] }) ||
		slices.ContainsFunc(x.servers, func(a server) bool { return slices.Contains(s.Servers, a.place()) })
}

// Remains reports whether systemd-resolved has settings like s for its link, which an agent left.
func Remains(ctx context.Context, s Settings) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	has, err := lookup(ctx, s.Link)
	return err == nil && has.isLike(s), err
}

// Remove reverts settings that Remains has found. It needs root, or polkit's consent.
func Remove(ctx context.Context, s Settings) error {
	_, err := New(Options{}).revert(ctx, s)
	return err
}
