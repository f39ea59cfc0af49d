package access

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestEachRoleAllowsWhatTheLowerOnesAllow(t *testing.T) {
	shop := []string{"shop"}
	for _, c := range []struct {
		grant Grant
		want  string // needs in the namespaces "shop" and "web"
	}{
		{Grant{}, "public"},
		{Grant{Role: Viewer}, "public view"},
		{Grant{Role: Registrar, Namespaces: shop}, "public view register:shop register:"},
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
		expect.Equal(t, strings.Join(got, " "), c.want, "%v allows", c.grant)
	}
}

func TestBackendsOfARegistrar(t *testing.T) {
	grant := func(ranges ...string) Grant {
		g := Grant{Role: Registrar, Namespaces: []string{"shop"}}
		for _, r := range ranges {
			g.Backends = append(g.Backends, netip.MustParsePrefix(r))
		}
		return g
	}
	for _, c := range []struct {
		g             Grant
		allowed, rest string
	}{
		{grant(), "10.0.0.1 2001:db8::1", "127.0.0.1 127.9.9.9 ::1 169.254.169.254 fe80::1"},
		{grant("10.1.0.0/16"), "10.1.2.3", "10.2.0.1 127.0.0.1 2001:db8::1"},
		{grant("0.0.0.0/0", "::/0"), "10.1.2.3 2001:db8::1", "127.0.0.1 ::1 169.254.1.1"},
		{grant("127.0.0.0/8", "::1/128"), "127.0.0.1 ::1", "10.1.2.3 fe80::1"},
		{grant("10.1.0.0/16").with(grant("127.0.0.0/8")), "10.1.2.3 127.0.0.1", "10.2.0.1"},
		{grant("127.0.0.0/8").with(grant()), "10.1.2.3 127.0.0.1", "::1"},
		{Grant{Role: Operator}, "10.1.2.3 127.0.0.1 ::1", ""},
	} {
		for want, list := range map[bool]string{true: c.allowed, false: c.rest} {
			for _, a := range strings.Fields(list) {
				if c.g.AllowsBackend(netip.MustParseAddr(a)) != want {
					t.Errorf("%+v allows %s: %v", c.g, a, !want)
				}
			}
		}
	}
	err := (Grant{Role: Operator, Backends: grant("10.1.0.0/16").Backends}).Check()
	expect.True(t, err != nil, "an operator is limited to backends")
}

func TestHostnamesOfARegistrar(t *testing.T) {
	g := Grant{Role: Registrar, Namespaces: []string{"shop"}, Hostnames: []string{"*.shop.example"}}.with(
		Grant{Role: Registrar, Namespaces: []string{"web"}, Hostnames: []string{"www.web.example"}})
	for name, want := range map[string]bool{"www.shop.example": true, "a.b.shop.example": true, "www.web.example": true, "shop.example": false,
		"xshop.example": false, ".shop.example": false, "www.shop.example.org": false, "a.www.web.example": false, "db.vip.internal": false} {
		if g.AllowsHostname(name) != want {
			t.Errorf("%s: allowed %v", name, !want)
		}
	}
	if (Grant{Role: Registrar, Namespaces: []string{"shop"}}).AllowsHostname("www.shop.example") || !(Grant{Role: Operator}).AllowsHostname("www.bank.example") {
		t.Error("a registrar without hostnames may use one, or an operator may not")
	}
	for pattern, valid := range map[string]bool{"www.shop.example": true, "*.shop.example": true, "*": false, "*.": false, "*.example": false, "a.*.example": false, "**.shop.example": false, "": false} {
		if err := CheckHostname(pattern); (err == nil) != valid {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	if err := (Grant{Role: Operator, Hostnames: []string{"www.shop.example"}}).Check(); err == nil {
		t.Error("an operator is limited to hostnames")
	}
}

func TestPolicy(t *testing.T) {
	p, missing := NewPolicy(Owners{UID: 990, SocketGID: 77}, []Rule{
		{User: "daemon", Grant: Grant{Role: Viewer}},
		{Group: "daemon", Grant: Grant{Role: Registrar, Namespaces: []string{"web"}}},
		{User: "no-such-user", Grant: Grant{Role: Admin}},
		{User: "70001", Grant: Grant{Role: Operator}},
		{Group: "70002", Grant: Grant{Role: Viewer}},
		{CertSubject: "deploy.example", Grant: Grant{Role: Registrar, Namespaces: []string{"shop"}}},
		{CertSubject: "deploy.example", Grant: Grant{Role: Registrar, Namespaces: []string{"web"}}},
		{CertSubject: "deploy.example", Grant: Grant{Role: Viewer}},
	})
	expect.SameList(t, missing, []string{"user no-such-user"}, "missing")
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
		expect.Equal(t, c.got.String(), c.want, "%s: %s", c.name, c.got)
	}
}
