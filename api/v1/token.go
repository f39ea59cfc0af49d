package v1

import (
	"net/netip"
	"time"
)

// TokenSpec describes a token to create.
type TokenSpec struct {
	Role       string         `toml:"role" json:"role" enum:"viewer,registrar,operator,admin"`
	Namespaces []string       `toml:"namespaces" json:"namespaces,omitempty" doc:"of a registrar: the namespaces whose services and backends it may write"`
	Backends   []netip.Prefix `toml:"backends" json:"backends,omitempty" doc:"of a registrar: the ranges of addresses that backends of its services may have; none: all but loopback and link-local addresses"`
	Hostnames  []string       `toml:"hostnames" json:"hostnames,omitempty" doc:"of a registrar: the hostnames that its services may have, such as www.shop.example, or *.shop.example for all names below it"`
	Expires    *time.Time     `toml:"expires" json:"expires,omitempty" doc:"none: the token is valid until it is revoked"`
}

// Token is a token of a caller. Its text is known only in the response to its creation.
type Token struct {
	Name string `json:"name"`
	TokenSpec
	Created time.Time `json:"created"`
	Expired bool      `json:"expired,omitempty"`
	Author  string    `json:"author,omitempty" doc:"who created it"`
	Token   string    `json:"token,omitempty" doc:"the token, only in the response to its creation"`
}

// TokenList is all tokens, by name.
type TokenList struct {
	Items []Token `json:"items"`
	Next  string  `json:"next,omitempty" doc:"cursor of the next page; absent on the last"`
}

// Whoami is the caller of a request and the agent that answers it.
type Whoami struct {
	Name       string         `json:"name" doc:"the user of the process, \"token NAME\", \"certificate SUBJECT\", or \"tcp ADDRESS\""`
	Role       string         `json:"role" enum:"viewer,registrar,operator,admin"`
	Namespaces []string       `json:"namespaces" doc:"of a registrar: those that it may write; empty for other roles, which are not limited to namespaces"`
	Hostnames  []string       `json:"hostnames,omitempty" doc:"of a registrar: those that its services may have"`
	Backends   []netip.Prefix `json:"backends,omitempty" doc:"of a registrar: the ranges of addresses that its backends may have"`
	Node       string         `json:"node" doc:"the node that answers"`
	Version    string         `json:"version" doc:"of the agent"`
}

// SessionSpec is the body of a login of a browser.
type SessionSpec struct {
	Token string `toml:"token" json:"token" doc:"the text of a token, which becomes the cookie of the session"`
}
