// Package haproxy converts the TCP part of a haproxy.cfg.
//
// listen sections, and frontend sections with their default_backend, become services: one for each
// address that they bind. Sections in mode http are not converted, because ironvip forwards
// connections and reads no requests. Every line that has no equivalent becomes a note.
//
// Files:
//
//	sections.go  the text as sections and lines, and which defaults a section has
//	convert.go   from sections to services
//	bind.go      bind lines
//	server.go    server lines
//	check.go     options about checks
//	stick.go     stick tables and rules
//	time.go      times, bounded
package haproxy
