// Package browser tests the dashboard: a real browser shows the pages of a real agent.
//
// Each test starts an agent of its own, with the userspace proxy and backends in this process, and opens
// tabs of one Chromium, which all tests share. The content of a page is compared with the answers of the
// API. axe-core checks the accessibility of each page, and html-validate its HTML.
package browser
