package access

import (
	"errors"
	"os/user"
	"slices"
	"strconv"
)

// ErrNotReady is the error of Policy.Tokens for a token that may be known later.
var ErrNotReady = errors.New("the tokens have not been read yet")

// Rule gives a grant to a user or a group of this host, or to the subject of a client certificate.
// Exactly one of the three is set.
type Rule struct {
	Grant
	User        string `toml:"user"` // a name, or a numeric id
	Group       string `toml:"group"`
	CertSubject string `toml:"cert_subject"` // the common name
}

// Policy is who may do what. It is immutable.
type Policy struct {
	rules []rule

	// Tokens returns who holds a token. An error that is ErrNotReady asks the caller to try again.
	// Nil: there are none.
	Tokens func(token string) (Caller, error)
	// InsecureLoopback makes every process of this host an admin over TCP.
	InsecureLoopback bool
	// PublicMetrics makes the metrics public.
	PublicMetrics bool
	// Everyone makes every caller an admin. It is for tests of what is behind the policy.
	Everyone bool
}

// rule is a Rule with the ids of its user or group.
type rule struct {
	uid, gid    int64 // -1: none
	certSubject string
	grant       Grant
}

// Owners are the defaults of a policy, which no rule can take away.
type Owners struct {
	UID       uint32 // of the agent: an admin, as root is
	SocketGID int64  // the group of the unix socket, whose members are operators; -1: none
}

// NewPolicy returns a policy with the rules, and the names of users and groups that this host does
// not have. A rule for such a name has no effect.
func NewPolicy(owners Owners, rules []Rule) (p *Policy, missing []string) {
	p = &Policy{rules: []rule{
		{uid: 0, gid: -1, grant: Grant{Role: Admin}},
		{uid: int64(owners.UID), gid: -1, grant: Grant{Role: Admin}},
	}}
	if owners.SocketGID >= 0 {
		p.rules = append(p.rules, rule{uid: -1, gid: owners.SocketGID, grant: Grant{Role: Operator}})
	}
	for _, r := range rules {
		resolved := rule{uid: -1, gid: -1, certSubject: r.CertSubject, grant: r.Grant}
		switch {
		case r.User != "":
			if resolved.uid = number(r.User); resolved.uid < 0 {
				u, err := user.Lookup(r.User)
				if err != nil {
					missing = append(missing, "user "+r.User)
					continue
				}
				resolved.uid = number(u.Uid)
			}
		case r.Group != "":
			if resolved.gid = number(r.Group); resolved.gid < 0 {
				g, err := user.LookupGroup(r.Group)
				if err != nil {
					missing = append(missing, "group "+r.Group)
					continue
				}
				resolved.gid = number(g.Gid)
			}
		}
		p.rules = append(p.rules, resolved)
	}
	return p, missing
}

func number(id string) int64 {
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return -1
	}
	return int64(n)
}

// OfProcess returns the grant of a process with a user and groups.
func (p *Policy) OfProcess(uid uint32, gids []uint32) (g Grant) {
	for _, r := range p.rules {
		if r.uid == int64(uid) || r.gid >= 0 && slices.Contains(gids, uint32(r.gid)) {
			g = g.with(r.grant)
		}
	}
	return g
}

// OfCertificate returns the grant of a verified client certificate with a common name.
func (p *Policy) OfCertificate(subject string) (g Grant) {
	for _, r := range p.rules {
		if r.certSubject != "" && r.certSubject == subject {
			g = g.with(r.grant)
		}
	}
	return g
}
