package access

import (
	"slices"
	"strings"
	"testing"
)

func TestEachRoleAllowsWhatTheLowerOnesAllow(t *testing.T) {
	shop := []string{"shop"}
	for _, c := range []struct {
		grant Grant
		want  string // needs in the namespaces "shop" and "web"
	}{
		{Grant{}, "public"},
		{Grant{Role: Viewer}, "public view"},
		{Grant{Registrar, shop}, "public view register:shop register:"},
		{Grant{Role: Operator}, "public view register:shop register:web register: operate"},
		{Grant{Role: Admin}, "public view register:shop register:web register: operate administer"},
	} {
		var got []string
		for _, n := range []struct {
			name, namespace string
			need            Need
		}{{"public", "", Public}, {"view", "web", View}, {"register:shop", "shop", Register}, {"register:web", "web", Register}, {"register:", "", Register}, {"operate", "shop", Operate}, {"administer", "shop", Administer}, {"unstated", "", unstated}} {
			if c.grant.Allows(n.need, n.namespace) {
				got = append(got, n.name)
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%v allows %q, want %q", c.grant, s, c.want)
		}
	}
}

func TestPolicy(t *testing.T) {
	p, missing := NewPolicy(Owners{UID: 990, SocketGID: 77}, []Rule{
		{User: "daemon", Grant: Grant{Role: Viewer}},
		{Group: "daemon", Grant: Grant{Registrar, []string{"web"}}},
		{User: "no-such-user", Grant: Grant{Role: Admin}},
		{User: "70001", Grant: Grant{Role: Operator}},
		{Group: "70002", Grant: Grant{Role: Viewer}},
		{CertSubject: "deploy.example", Grant: Grant{Registrar, []string{"shop"}}},
		{CertSubject: "deploy.example", Grant: Grant{Registrar, []string{"web"}}},
		{CertSubject: "deploy.example", Grant: Grant{Role: Viewer}},
	})
	if !slices.Equal(missing, []string{"user no-such-user"}) {
		t.Errorf("missing %q", missing)
	}
	for _, c := range []struct {
		name string
		got  Grant
		want string
	}{
		{"root", p.OfProcess(0, nil), "admin"},
		{"the agent's user", p.OfProcess(990, []uint32{5}), "admin"},
		{"a member of the socket's group", p.OfProcess(1000, []uint32{5, 77}), "operator"},
		{"a user with a rule", p.OfProcess(1, nil), "viewer"},
		{"a user with a rule for its group, too", p.OfProcess(1, []uint32{1}), "registrar of web"},
		{"a user of a directory service", p.OfProcess(70001, []uint32{70002}), "operator"},
		{"a member of a group of a directory service", p.OfProcess(1000, []uint32{70002}), "viewer"},
		{"anybody else", p.OfProcess(1000, []uint32{1000}), "none"},
		{"a certificate with several rules", p.OfCertificate("deploy.example"), "registrar of shop, web"},
		{"another certificate", p.OfCertificate("other.example"), "none"},
		{"a certificate without a name", p.OfCertificate(""), "none"},
	} {
		if c.got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, c.got, c.want)
		}
	}
}
